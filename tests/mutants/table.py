"""Faults that an author, or we, could make, and the law that tells each of them.

``old`` is replaced by ``new`` once in ``file``; ``law`` is ``SUITE:TEST`` of ``tests/conformance``.
A mutant whose text is no longer there fails its test: it must follow the code.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """One planted fault."""

    why: str
    file: str
    old: str
    new: str
    law: str

    @property
    def suite(self) -> str:
        """The suite of its law."""
        return self.law.partition(":")[0]


MUTANTS = (
    Mutant(
        "requested rows are counted, not inserted ones",
        "core/doorbuster/ledger/accept.py",
        "fresh = [n for n in range(len(items)) if n not in known] if known else range(len(items))",
        "fresh = range(len(items))",
        "ledger:test_4_1_only_inserted_rows_count",
    ),
    Mutant(
        "ABORTED is read as accepted",
        "core/doorbuster/ledger/stored.py",
        "if stored.state is IntentState.ABORTED:\n        # SOLD_OUT",
        "if stored.state is None:\n        # SOLD_OUT",
        "ledger:test_4_1_a_refused_hold_is_never_accepted_later",
    ),
    Mutant(
        "other content is accepted",
        "core/doorbuster/ledger/stored.py",
        "if fingerprint is not None and fingerprint != stored.lines:",
        "if fingerprint is None and fingerprint != stored.lines:",
        "ledger:test_2_3_other_content_is_key_reused",
    ),
    Mutant(
        "limit after stock",
        "core/doorbuster/ledger/room.py",
        "        for scope, n in wants:\n            limit = self._limits[scope]",
        "        for sku, n in need:\n            if self._free.get((place, sku), 0) < n:\n                return Short({sku: n})\n        for scope, n in wants:\n            limit = self._limits[scope]",
        "ledger:test_s0_14_the_limit_is_judged_before_stock",
    ),
    Mutant(
        "a quantity is split over what is left",
        "core/doorbuster/ledger/room.py",
        "            if free < n:\n                missing[sku] = n",
        "            if free < 1:\n                missing[sku] = n",
        "ledger:test_a_quantity_is_never_split",
    ),
    Mutant(
        "the epoch is not checked",
        "core/doorbuster/ledger/accept.py",
        "if row.epoch != epoch or row.kind is not kind:",
        "if row.kind is not kind:",
        "ledger:test_6_1_a_stale_epoch_writes_nothing",
    ),
    Mutant(
        "the entrance is judged at the door only",
        "core/doorbuster/ledger/accept.py",
        "gate = control.judge(row, now_ms)",
        "gate = None",
        "ledger:test_6_6_the_entrance_is_judged_inside_the_transaction",
    ),
    Mutant(
        "the outbox row counts what was requested",
        "core/doorbuster/ledger/accept.py",
        "(batch, sid, len(taken), persist",
        "(batch, sid, len(items), persist",
        "ledger:test_4_1_accept_is_one_transaction",
    ),
    Mutant(
        "undo without tombstone",
        "core/doorbuster/ledger/returns.py",
        "    if new:\n        connection.execute(\n            schema.intents.insert(),",
        "    if not new:\n        connection.execute(\n            schema.intents.insert(),",
        "ledger:test_4_3_a_tombstone_keeps_a_later_accept_out",
    ),
    Mutant(
        "a tombstone after the fence",
        "core/doorbuster/ledger/returns.py",
        "    if not _is_active(connection, sid, epoch):\n        raise Fenced\n",
        "",
        "ledger:test_4_3_after_the_fence_nothing_is_written",
    ),
    Mutant(
        "a return is not idempotent",
        "core/doorbuster/ledger/returns.py",
        "        .values(state=job.returned_as)\n    ).rowcount\n    if hit != 1:\n        return False\n",
        "        .values(state=job.returned_as)\n    ).rowcount\n",
        "ledger:test_4_4_a_return_gives_everything_back_once",
    ),
    Mutant(
        "returned units are sellable twice",
        "core/doorbuster/ledger/returns.py",
        ".values(quantity=grants.c.quantity - n, consumed=grants.c.consumed - n)",
        ".values(consumed=grants.c.consumed - n)",
        "ledger:test_4_4_returned_units_are_sold_again_once",
    ),
    Mutant(
        "a paid order can be cancelled",
        "core/doorbuster/ledger/returns.py",
        "if before is None or before.state not in RETURN_STATES[to]:",
        "if before is None:",
        "ledger:test_4_4_each_end_has_its_beginning",
    ),
    Mutant(
        "a funding moves again",
        "core/doorbuster/ledger/fundings.py",
        "    if row.state is not FundingState.PLANNED:\n        return row\n",
        "",
        "ledger:test_5_1_a_funding_moves_once_by_its_id",
    ),
    Mutant(
        "a move takes what is not there",
        "core/doorbuster/ledger/fundings.py",
        "n = min(wanted, _available(connection, row))",
        "n = wanted",
        "ledger:test_5_2_at_most_the_free_units_of_its_source_move",
    ),
    Mutant(
        "10,000 over 32 loses the remainder",
        "core/doorbuster/ledger/grants.py",
        "return [share + (1 if i < rest else 0) for i in range(n)]",
        "return [share for i in range(n)]",
        "ledger:test_5_1_warm_up_gives_every_unit_out_once",
    ),
    Mutant(
        "a gather asks unallocated only",
        "core/doorbuster/ledger/grants.py",
        "        donors += rich\n",
        "        donors += rich[:0]\n",
        "ledger:test_5_3_a_dry_place_gathers_the_last_units",
    ),
    Mutant(
        "sold out while a move is open",
        "core/doorbuster/ledger/grants.py",
        "return not self.unallocated and not self.free and not self.open_fundings",
        "return not self.unallocated and not self.free",
        "ledger:test_7_1_sold_out_is_only_when_nothing_can_come_back",
    ),
    Mutant(
        "a batch is done when it was read",
        "core/doorbuster/ledger/outbox.py",
        ".where(table.c.batch.in_(list(batches)), table.c.done == 0, ~waiting)",
        ".where(table.c.batch.in_(list(batches)), table.c.done == 0)",
        "ledger:test_4_5_a_batch_is_done_when_none_of_it_is_reserved",
    ),
    Mutant(
        "persist revives a returned order",
        "core/doorbuster/ledger/sql/sqlite.sql",
        "WHERE id IN (SELECT value FROM json_each(?)) AND state = 'RESERVED';",
        "WHERE id IN (SELECT value FROM json_each(?));",
        "ledger:test_4_5_a_foreign_order_is_settled_by_compare_and_set",
    ),
    Mutant(
        "an unknown commit is said to be not applied",
        "core/doorbuster/ledger/database.py",
        'raise UnknownOutcomeError("COMMIT failed; its outcome is not known") from error',
        'raise UnavailableError("COMMIT failed") from error',
        "ledger:test_4_1_a_commit_that_stays_unknown_is_told_as_unknown",
    ),
    Mutant(
        "a clock set back refills",
        "plugins/limiter/doorbuster_limiter/rate.py",
        "elapsed_s = now_s - self.at_s",
        "elapsed_s = abs(now_s - self.at_s)",
        "gates:test_l5_never_more_than_burst_and_rate",
    ),
    Mutant(
        "the bucket is not capped",
        "plugins/limiter/doorbuster_limiter/rate.py",
        "            self.level = min(self.level, burst)\n",
        "",
        "gates:test_a_pause_refills_to_burst_and_no_further",
    ),
    Mutant(
        "all buyers share one turn",
        "plugins/limiter/doorbuster_limiter/buyer_rate.py",
        "[self._judge((sale, attempt.buyer), now_ns)",
        "[self._judge((sale, ''), now_ns)",
        "gates:test_answers_align_with_attempts_in_order",
    ),
    Mutant(
        "a refused attempt goes on to deduct",
        "core/doorbuster/pipeline.py",
        "                if verdict is None:\n                    kept.append(position)\n",
        "                kept.append(position)\n                if verdict is None:\n                    pass\n",
        "gates:test_a_refused_attempt_never_reaches_deduct",
    ),
    Mutant(
        "what was received is gone",
        "core/doorbuster/testing/memory_queue.py",
        "        return found\n\n    def remove",
        "            for number in found:\n                self._records.pop(number)\n        return found\n\n    def remove",
        "queues:test_what_is_not_settled_comes_again",
    ),
    Mutant(
        "settle commits everything before it",
        "core/doorbuster/testing/memory_queue.py",
        "            for number in numbers:\n                self._records.pop(number, None)",
        "            for number in [n for n in self._records if numbers and n <= max(numbers)]:\n                self._records.pop(number, None)",
        "queues:test_settling_one_record_settles_no_other",
    ),
    Mutant(
        "persist revives a void order",
        "core/doorbuster/testing/memory_orders.py",
        "        return Persisted.EXISTS if found.state == _CREATED else Persisted.REFUSED\n",
        "        if found.state != _CREATED:\n            self._store.orders[item.order_no] = MemoryOrder(item, _CREATED)\n        return Persisted.EXISTS\n",
        "persist:test_4_5_void_before_persist_refuses_it_for_good",
    ),
    Mutant(
        "a return forgets void",
        "core/doorbuster/workers/compensate.py",
        "            self._void(runtime, job)\n",
        "",
        "persist:test_4_4_a_return_leaves_no_valid_order",
    ),
    Mutant(
        "equal content is published",
        "core/doorbuster/settings/store.py",
        "changed = old is None or old.digest != digest",
        "changed = True",
        "sources:test_the_same_content_is_silent",
    ),
    Mutant(
        "a blank file is a configuration",
        "core/doorbuster/settings/store.py",
        "elif new.blank and not old.blank:",
        "elif old.blank and not new.blank:",
        "sources:test_g1_a_blank_document_keeps_the_old_one",
    ),
    Mutant(
        "holder: check then act: no lock around deduct",
        "core/doorbuster/testing/memory.py",
        "            with slot.lock:\n                fence = busy(fenced)",
        "            if True:\n                fence = busy(fenced)",
        "stock:test_04_never_oversells_under_threads",
    ),
    Mutant(
        "holder: replay holds again (record not looked up)",
        "core/doorbuster/testing/_slot.py",
        "        if record is not None:\n            return self._replay(record, attempt)\n",
        "",
        "stock:test_05_one_identity_holds_once",
    ),
    Mutant(
        "holder: undo not idempotent",
        "core/doorbuster/testing/_slot.py",
        "        if record.state != _HELD:\n            kept",
        "        if record.state == _RETURNED:\n            kept",
        "stock:test_08_an_undo_gives_the_unit_back_once",
    ),
    Mutant(
        "holder: undo leaves no tombstone where no record is",
        "core/doorbuster/testing/_slot.py",
        "            self.records[key] = _Record(\n                item.state, _content(attempt), item.reservation, now_s, refusal\n            )\n            return Compensated.DONE",
        "            return Compensated.DONE",
        "stock:test_08_an_undo_before_its_hold_keeps_it_out",
    ),
    Mutant(
        "holder: credit not idempotent by id",
        "core/doorbuster/testing/_slot.py",
        "        if funding.id in self.applied:\n            return self.applied[funding.id]\n",
        "",
        "stock:test_13_warm_up_twice_is_warm_up_once",
    ),
    Mutant(
        "holder: debit takes what is not there",
        "core/doorbuster/testing/_slot.py",
        "min(funding.quantity, left)",
        "funding.quantity",
        "stock:test_13_a_debit_takes_free_units_once",
    ),
    Mutant(
        "holder: epoch not checked in deduct",
        "core/doorbuster/testing/memory.py",
        '"stale-epoch" if over else "kind"',
        '"kind"',
        "stock:test_11_a_stale_epoch_is_refused",
    ),
    Mutant(
        "holder: replay after abort answers the reservation",
        "core/doorbuster/testing/_slot.py",
        "        if record.refusal is not None:\n            return record.refusal\n",
        "",
        "stock:test_09_a_replay_after_abort_gives_its_code",
    ),
    Mutant(
        "holder: answers misaligned: refusals last",
        "core/doorbuster/testing/memory.py",
        "        return answers\n\n    @hookimpl\n    def compensate",
        "        return sorted(answers, key=lambda a: hasattr(a, 'code'))\n\n    @hookimpl\n    def compensate",
        "stock:test_02_answers_align_with_attempts",
    ),
    Mutant(
        "holder: lines of one sku not summed",
        "core/doorbuster/testing/_slot.py",
        "        sums[line.sku] += line.quantity",
        "        sums[line.sku] = line.quantity",
        "stock:test_07_two_lines_of_one_sku_count_together",
    ),
    Mutant(
        "an accept leaves no outbox row: paid for, and never made an order",
        "core/doorbuster/ledger/accept.py",
        "    if taken:\n        owner, until",
        "    if taken and lease:\n        owner, until",
        "ledger:test_4_1_accept_is_one_transaction",
    ),
    Mutant(
        "sold out as soon as one place is empty",
        "core/doorbuster/ledger/grants.py",
        "sa.select(grants.c.sku, sa.func.sum(",
        "sa.select(grants.c.sku, sa.func.min(",
        "ledger:test_7_1_sold_out_is_only_when_nothing_can_come_back",
    ),
    Mutant(
        "a mark on one sku ends the whole sale",
        "plugins/local_cache/doorbuster_local_cache/sold_out.py",
        "read = self._context.ledger.sold_out(sale)",
        "read = self._context.ledger.sold_out(sale)\n            read = msgspec.structs.replace(read, skus=frozenset(sale.skus))",
        "gates:test_answers_align_with_attempts_in_order",
    ),
    Mutant(
        "a rate per buyer is kept by request",
        "plugins/limiter/doorbuster_limiter/buyer_rate.py",
        "[self._judge((sale, attempt.buyer), now_ns)",
        "[self._judge((sale, attempt.request_id), now_ns)",
        "gates:test_l5_never_more_than_burst_and_rate",
    ),
    Mutant(
        "deny-list: who hides the address passes",
        "plugins/limiter/doorbuster_limiter/deny_list.py",
        "            return BAD_IP\n",
        "            return None\n",
        "gates:test_answers_align_with_attempts_in_order",
    ),
    Mutant(
        "a closed gate opens on its fault",
        "core/doorbuster/pipeline.py",
        "            if gate.open_on_fault:",
        "            if gate is not None:",
        "gates:test_its_own_fault_follows_on_fault",
    ),
    Mutant(
        "rate: check then act: no lock around the bucket",
        "plugins/limiter/doorbuster_limiter/rate.py",
        "        with self.lock:\n",
        "        if True:\n",
        "gates:test_threads_get_what_one_thread_would",
    ),
    Mutant(
        "a malformed document is taken up to its fault",
        "core/doorbuster/settings/layers.py",
        "        problems.append(_toml_problem(file, content, str(error)))\n        return None",
        "        good = content.splitlines(keepends=True)\n        while good:\n            good.pop()\n            try:\n                table = tomllib.loads(''.join(good))\n                break\n            except tomllib.TOMLDecodeError:\n                pass\n        content = ''.join(good)",
        "sources:test_g1_a_malformed_document_keeps_the_old_one",
    ),
    Mutant(
        "holder: other content is accepted",
        "core/doorbuster/testing/_slot.py",
        "        if record.content != _content(attempt):\n            return Rejection(Code.KEY_REUSED)\n",
        "",
        "stock:test_06_other_content_is_key_reused",
    ),
    Mutant(
        "holder: limit after stock",
        "core/doorbuster/testing/_slot.py",
        "self._over_limit(attempt.buyer, need, terms) or self._short(need)",
        "self._short(need) or self._over_limit(attempt.buyer, need, terms)",
        "stock:test_10_the_limit_is_judged_before_stock",
    ),
    Mutant(
        "holder: a quantity is split, units below zero",
        "core/doorbuster/testing/_slot.py",
        "            if left[sku] < n:",
        "            if left[sku] < 1:",
        "stock:test_07_too_many_are_refused_whole",
    ),
    Mutant(
        "holder: the epoch is not checked in compensate",
        "core/doorbuster/testing/memory.py",
        "        found = self._store.live(attempt.sale, run, item.reservation.epoch)",
        "        found = self._store.epochs.get((attempt.sale, run, item.reservation.epoch))",
        "stock:test_11_a_stale_epoch_is_not_compensated",
    ),
    Mutant(
        "a return keeps the buyer's limit used up",
        "core/doorbuster/ledger/returns.py",
        "    _lower_quota(connection, job.sid, item.attempt.buyer, need)\n",
        "",
        "ledger:test_4_4_a_return_gives_everything_back_once",
    ),
    Mutant(
        "holder: a replay gets another order number",
        "core/doorbuster/testing/_slot.py",
        "return Reservation(attempt, self.place, first.order_no, first.epoch)",
        "return Reservation(attempt, self.place, attempt.order_no, first.epoch)",
        "stock:test_05_the_stored_order_no_is_answered",
    ),
)
