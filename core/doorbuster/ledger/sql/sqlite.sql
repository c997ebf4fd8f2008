-- The hot statements of the ledger for SQLite, each with its reason. Parameters are positional.
-- A statement takes a whole batch, as rows of VALUES or as one JSON array, and answers many rows
-- as one JSON array of arrays: see queries.py for why.
-- Every transaction that runs them began with BEGIN IMMEDIATE: what it reads stays true until
-- its COMMIT, and each write still carries its own guard, which must hit.

-- name: insert_intents
-- why: only what was really inserted counts (protocol.md 4.1); that target of ON CONFLICT only.
INSERT INTO intents (sid, buyer, request_id, order_no, lines, epoch, place, state, batch, at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, 'RESERVED', ?, ?)
ON CONFLICT (sid, buyer, request_id) DO NOTHING;

-- name: read_intents
-- why: one round trip for a batch's replays; CROSS JOIN keeps the order list -> unique index.
SELECT json_group_array(json_array(
  i.buyer, i.request_id, i.id, i.order_no, i.lines, i.state, i.code, i.epoch, i.place, i.batch))
FROM json_each(?) AS k CROSS JOIN intents AS i
  ON i.sid = ? AND i.buyer = json_extract(k.value, '$[0]')
  AND i.request_id = json_extract(k.value, '$[1]');

-- name: drop_intents
-- why: a router holds nothing, so its refused rows are removed; the batch number makes them ours.
DELETE FROM intents
WHERE batch = ? AND (buyer, request_id) IN
  (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?));

-- name: abort_intents
-- why: a holder's refused row is the tombstone that its undo needs (protocol.md 4.3).
UPDATE intents SET state = 'ABORTED', code = ?
WHERE batch = ? AND (buyer, request_id) IN
  (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?));

-- name: read_quotas
-- why: one round trip for a batch's buyers, by the primary key.
SELECT json_group_array(json_array(q.buyer, q.scope, q.bought))
FROM json_each(?) AS k CROSS JOIN quotas AS q ON q.sid = ? AND q.buyer = k.value;

-- name: add_quotas
-- why: the guard is the law I5; a first row is at most the limit because decide() compared it.
INSERT INTO quotas (sid, buyer, scope, bought) VALUES (?, ?, ?, ?)
ON CONFLICT (sid, buyer, scope) DO UPDATE SET bought = bought + excluded.bought
WHERE bought + excluded.bought <= ?;

-- name: read_grants
-- why: the state tells whether a fence was set; places with no grant are simply missing.
SELECT place, sku, quantity - consumed, state FROM grants
WHERE sid = ? AND epoch = ? AND place IN (SELECT value FROM json_each(?));

-- name: consume_grants
-- why: I2; ACTIVE is the fence of a hand-over, version that of a pause, a limit, a window.
UPDATE grants SET consumed = consumed + w.n
FROM (SELECT json_extract(value, '$[0]') AS place, json_extract(value, '$[1]') AS sku,
             json_extract(value, '$[2]') AS n FROM json_each(?)) AS w
WHERE grants.sid = ? AND grants.epoch = ? AND grants.place = w.place AND grants.sku = w.sku
  AND grants.state = 'ACTIVE' AND grants.version = ? AND grants.consumed + w.n <= grants.quantity;

-- name: insert_outbox
-- why: one row per committed batch is what workers lease, never rows (48-67k/s against 4-7k).
INSERT INTO outbox (batch, sid, n, persist, done, leased_until_ms, owner, tries, at_ms)
VALUES (?, ?, ?, ?, 0, ?, ?, 0, ?);

-- name: reserved_intents
-- why: what persist still has to write of some batches; a dead letter waits for a person.
SELECT json_group_array(json_array(id, buyer, request_id, order_no, lines, epoch, place))
FROM (
  SELECT * FROM intents AS i
  WHERE i.batch IN (SELECT value FROM json_each(?)) AND i.state = 'RESERVED'
    AND NOT EXISTS (SELECT 1 FROM dead_letters AS d WHERE d.order_no = i.order_no)
  ORDER BY i.id);

-- name: intent_states
-- why: what was RESERVED under the lock is what create_intents moves in the same transaction.
SELECT json_group_array(json_array(id, state)) FROM intents
WHERE id IN (SELECT value FROM json_each(?));

-- name: create_intents
-- why: the compare-and-set RESERVED -> CREATED (protocol.md 4.5); a return that won stays.
UPDATE intents SET state = 'CREATED'
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'RESERVED';

-- name: create_away
-- why: the same for an order that a persist plugin keeps elsewhere; the mark says whose word it is.
UPDATE intents SET state = 'CREATED', away = 1
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'RESERVED';

-- name: read_control
-- why: every accept reads its sale's control row under the lock: one row, as one JSON array.
SELECT json_array(
  sid, environment, sale, run, state, epoch, kind, deduct, journal, config_mode, requested, fuse,
  effective, version, opens_at_ms, closes_at_ms, json(limits), json(limits_max))
FROM sales WHERE sid = ?;

-- name: read_left
-- why: a sold-out sale asks it for every batch: one look, in one snapshot (protocol.md 7.1).
WITH free AS (
  SELECT sku, sum(quantity - consumed) AS n FROM grants
  WHERE sid = ? AND state <> 'CLOSED' GROUP BY sku),
moving AS (
  SELECT sku, count(*) AS n FROM fundings
  WHERE sid = ? AND state IN ('PLANNED', 'MOVED') GROUP BY sku)
SELECT json_group_array(json_array(
  s.sku, s.unallocated, coalesce(free.n, 0), coalesce(moving.n, 0)))
FROM stock AS s LEFT JOIN free ON free.sku = s.sku LEFT JOIN moving ON moving.sku = s.sku
WHERE s.sid = ?;

-- name: read_needs
-- why: role topup asks it of every sale all the time, nearly always in vain.
SELECT EXISTS (SELECT 1 FROM stock WHERE sid = ? AND wanted > 0),
  EXISTS (SELECT 1 FROM stock WHERE sid = ? AND unallocated > 0),
  EXISTS (SELECT 1 FROM fundings WHERE sid = ? AND state IN ('PLANNED', 'MOVED'));

-- name: open_batches
-- why: oldest first, by the index (done, batch); a lease that ends later than any is no lease (Y9).
SELECT batch, sid, n, tries, persist FROM outbox
WHERE done = 0 AND (leased_until_ms <= ? OR leased_until_ms > ?)
  AND (? IS NULL OR sid IN (SELECT value FROM json_each(?)))
ORDER BY batch LIMIT ?;

-- name: lease_batches
-- why: under the lock that open_batches was read under.
UPDATE outbox SET leased_until_ms = ?, owner = ?, tries = tries + 1
WHERE done = 0 AND batch IN (SELECT value FROM json_each(?));

-- name: settle_batches
-- why: a batch is done when no intent of it waits, but for those in a dead letter.
UPDATE outbox SET done = 1
WHERE done = 0 AND batch IN (SELECT value FROM json_each(?)) AND NOT EXISTS (
  SELECT 1 FROM intents AS i WHERE i.batch = outbox.batch AND i.state = 'RESERVED'
    AND NOT EXISTS (SELECT 1 FROM dead_letters AS d WHERE d.order_no = i.order_no));
