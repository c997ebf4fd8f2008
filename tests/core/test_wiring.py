"""The compiler: names to bound methods, and every message says where and what to do."""

import pytest

from doorbuster import loading
from doorbuster.engine import Engine
from doorbuster.errors import (
    ConfigError,
    PluginNotInstalledError,
    UnknownPluginError,
    WiringError,
)
from doorbuster.model import Kind
from doorbuster.outcomes import Code
from doorbuster.plugin import Delivery, PluginOptions, Rejection, Reservation, hookimpl
from doorbuster.settings import convert
from doorbuster.tiers import Bound, Tier
from doorbuster.wiring import Wiring

HOLDER = ("compensate", "prepare", "credit", "open", "retire")
JOURNAL = ("freeze", "seed", "read", "trim")
_ARGS = {
    "compensate": "items",
    "prepare": "sale, epoch",
    "credit": "fundings",
    "debit": "fundings",
    "open": "sale, epoch",
    "retire": "sale, epoch",
    "freeze": "sale, epoch",
    "seed": "sale, epoch, intents",
    "read": "sale, epoch, max",
    "trim": "sale, epoch, upto",
    "deduct": "batch",
    "filter": "batch",
    "limit": "batch",
    "enqueue": "reservations",
    "persist": "reservations",
    "receive": "max, timeout_ms",
    "settle": "received",
    "places": "sale",
}


def offering(*hooks, **attributes):
    """A class with these hooks, each answering ``None``."""
    space = {"__init__": lambda self, options, context: None, **attributes}
    for hook in hooks:
        made = {}
        exec(f"def {hook}(self, {_ARGS[hook]}): return None", made)
        space[hook] = hookimpl(made[hook])
    return type("Made", (), space)


def refusal(make_stand, **tables):
    """The message with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        make_stand(start=False, **tables)
    return str(caught.value)


# ------------------------------------------------------------------ loading by name
def test_an_unknown_plugin_is_named_with_the_nearest_and_where(make_stand):
    """The message says the key, and what was probably meant."""
    text = refusal(make_stand, modes={"b": {"deduct": "db-atomc"}})
    assert text.startswith("modes.b.deduct: no plugin is named 'db-atomc'")
    assert "did you mean 'db-atomic'?" in text
    assert "known: buyer-rate, db-atomic, db-segments" in text
    with pytest.raises(UnknownPluginError):
        loading.load_class("nothing")


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("redis.asyncio", "pip install 'doorbuster[redis]'"),
        ("kafka", "pip install 'doorbuster[kafka]'"),
        ("acme_stock", "install what provides 'acme_stock'"),
    ],
)
def test_a_missing_extra_is_named(plugins, module, remedy):
    """One plugin's missing module never stops another: the error says what to install."""

    def load():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    plugins["late"] = load
    with pytest.raises(PluginNotInstalledError) as caught:
        loading.load_class("late", where="here")
    assert str(caught.value) == f"here: plugin 'late' needs module {module!r}: {remedy}"
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize("error", [SyntaxError("bad"), AttributeError("no Cls"), SystemExit(2)])
def test_a_broken_import_is_a_config_error_with_its_cause(make_stand, plugins, error):
    """Whatever happens in another's module, SystemExit included."""

    def load():
        raise error

    plugins["broken"] = load
    text = refusal(make_stand, pipeline={"limit": ["broken"]})
    assert "pipeline.limit: plugin 'broken' (made_up:broken) cannot be imported" in text
    assert type(error).__name__ in text


def test_an_entry_point_that_is_no_class_is_refused(make_stand, plugins):
    """A plugin is a class."""
    plugins["thing"] = "not a class"
    assert "'thing' (made_up:thing) is not a class" in refusal(
        make_stand, pipeline={"filter": ["thing"]}
    )


def test_two_plugins_of_one_name_are_an_error_not_a_lottery(plugins, monkeypatch):
    """Which one answers must not depend on the order of installation."""
    one, other = plugins.points(name="db-atomic")[0], plugins.points(name="db-segments")[0]
    twin = type("Point", (), {"name": "db-atomic", "value": "other:Cls", "load": other.load})()
    monkeypatch.setattr(loading, "entry_points", lambda **_: [one, one, twin])
    with pytest.raises(ConfigError, match="several plugins are named 'db-atomic'") as caught:
        loading.load_class("db-atomic")
    assert "doorbuster_db_stock:AtomicStock, other:Cls; uninstall all but one" in str(caught.value)


def test_installed_plugins_are_listed_without_importing_any(plugins):
    """``plugins list`` shows also what cannot be imported here."""

    def load():
        raise AssertionError("imported")

    plugins["heavy"] = load
    assert {"heavy", "db-atomic", "orders"} <= loading.find_entry_points().keys()


def test_a_bad_plugin_that_nobody_names_is_never_loaded(make_stand, plugins):
    """Only names that config uses are loaded, one by one."""

    def load():
        raise AssertionError("loaded")

    plugins["bad"] = load
    assert make_stand(plugin_tables={"rate": {"per_second": 5}}).buy("ann").code is Code.ACCEPTED


# ------------------------------------------------------------------ the shape of a plugin
def test_a_plugin_listed_where_it_offers_nothing_is_refused(make_stand, plugins):
    """The message says what it offers."""
    plugins["lim"] = offering("limit")
    text = refusal(make_stand, pipeline={"filter": ["lim"]})
    assert text == (
        "pipeline.filter: 'lim' is listed under filter but offers limit; "
        "list it where it belongs, or name a plugin that offers filter"
    )
    assert "'outbox' is listed under persist but offers nothing" in refusal(
        make_stand, pipeline={"persist": "outbox"}
    )


def test_an_async_stage_is_refused(make_stand, plugins):
    """One colour: stages are synchronous."""

    class Colour:
        def __init__(self, options, context):
            pass

        @hookimpl
        async def filter(self, batch):
            return [None]

    plugins["colour"] = Colour
    text = refusal(make_stand, pipeline={"filter": ["colour"]})
    assert text == (
        "pipeline.filter: plugin 'colour', hook 'filter': a stage is synchronous; write 'def', "
        "and do I/O in it directly"
    )


def test_a_stage_that_yields_is_refused(make_stand, plugins):
    """A generator has no length, so its answers cannot be aligned."""

    class Lazy:
        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self, batch):
            yield from (None for _ in batch)

    plugins["lazy"] = Lazy
    text = refusal(make_stand, pipeline={"filter": ["lazy"]})
    assert "build a list instead of yielding" in text


@pytest.mark.parametrize("flag", ["wrapper", "hookwrapper", "tryfirst", "trylast"])
def test_ordering_flags_and_wrappers_are_refused(make_stand, plugins, flag):
    """The config list is the order, and nobody wraps deduct (G9)."""

    def judge(self, batch):
        if "wrapper" in flag:
            yield
        return [None for _ in batch]

    judge.__name__ = "filter"
    space = {"filter": hookimpl(**{flag: True})(judge)}
    plugins["bold"] = type("Bold", (), {"__init__": lambda s, o, c: None, **space})
    text = refusal(make_stand, pipeline={"filter": ["bold"]})
    assert "wrappers and ordering flags are refused; the config list is the order" in text


def test_a_wrong_signature_is_refused(make_stand, plugins):
    """A hook takes what its spec gives; a stage takes all of it."""

    class More:
        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self, batch, extra):
            return []

    class Less:
        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self):
            return []

    plugins["more"], plugins["less"] = More, Less
    text = refusal(make_stand, pipeline={"filter": ["more"]})
    assert text == (
        "pipeline.filter: plugin 'more', hook 'filter': takes (batch, extra), expected (batch)"
    )
    text = refusal(make_stand, pipeline={"filter": ["less"]})
    assert "plugin 'less', hook 'filter': takes (), expected (batch)" in text


def test_an_observer_may_take_fewer_arguments(make_stand, plugins):
    """What is not needed need not be named; the rest arrives in its place."""
    heard = []

    class Ear:
        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self, batch):
            return [None] * len(batch)

        @hookimpl
        def units_returned(self, skus):
            heard.append(list(skus))

    plugins["ear"] = Ear
    stand = make_stand(pipeline={"filter": ["ear"]})
    stand.engine.sales.restock("drop", "gold", 5, actor="test")
    assert heard == [["gold"]]


def test_a_typo_in_a_hooks_name_is_found(make_stand, plugins):
    """A hook that no spec knows would never be called."""

    class Typo:
        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self, batch):
            return []

        @hookimpl
        def fliter(self, batch):
            return []

    plugins["typo"] = Typo
    text = refusal(make_stand, pipeline={"filter": ["typo"]})
    assert text == (
        "pipeline.filter: plugin 'typo': no hook is named 'fliter' (did you mean 'filter'?)"
    )


# ------------------------------------------------------------------ tiers, delivery, promise
def test_a_holder_lacking_hooks_is_named_with_what_it_lacks(make_stand, plugins):
    """A holder needs them all, a router none."""
    plugins["half"] = offering("deduct", "compensate", "debit")
    text = refusal(make_stand, pipeline={"deduct": "half"})
    assert text == (
        "pipeline.deduct: 'half' offers compensate, debit but lacks "
        "prepare, credit, open, retire; a holder needs them all, a router none"
    )


def test_a_journal_lacking_hooks_is_named_with_what_it_lacks(make_stand, plugins):
    """Tier journal needs the holder's hooks and its own."""
    plugins["part"] = offering("deduct", *HOLDER, "read", "trim")
    text = refusal(make_stand, pipeline={"deduct": "part"})
    assert "'part' offers read, trim but lacks freeze, seed; tier journal needs them all" in text
    plugins["bare"] = offering("deduct", "freeze")
    text = refusal(make_stand, pipeline={"deduct": "bare"})
    assert "'bare' offers freeze but lacks seed, read, trim, compensate" in text


def test_places_of_a_holder_without_debit_are_one(make_stand, plugins):
    """Else units strand: a dry place could never get another's (protocol.md 5.3)."""

    class Two(offering("deduct", *HOLDER)):
        @hookimpl
        def places(self, sale):
            return ["a", "b"]

    plugins["two"] = Two
    text = refusal(make_stand, pipeline={"deduct": "two"})
    assert "'two' holds units in 2 places but offers no debit" in text
    assert "offer debit, or name one place" in text


@pytest.mark.parametrize("places", [[], ["a", "a"], ["a}b"], [""], [1], ["x" * 65]])
def test_places_are_distinct_ids(make_stand, plugins, places):
    """Places become keys (X4), and one grant each."""

    class Odd(offering("deduct")):
        @hookimpl
        def places(self, sale):
            return places

    plugins["odd"] = Odd
    text = refusal(make_stand, pipeline={"deduct": "odd"})
    assert "'odd' names places" in text
    assert "expected distinct names of 1-64 of A-Z a-z 0-9 _ -" in text


@pytest.mark.parametrize("deduct", ["db-atomic", "memory"])
def test_journal_stream_needs_tier_journal(make_stand, deduct):
    """A router or holder cannot accept by itself."""
    tier = "router" if deduct == "db-atomic" else "holder"
    text = refusal(make_stand, pipeline={"deduct": deduct, "journal": "stream"})
    assert f"journal 'stream' needs a deduct plugin of tier journal, {deduct!r} is a {tier}" in text
    assert "use journal = 'ledger'" in text


def test_a_journal_waits_for_its_worker_role(make_stand, plugins):
    """Kind J without role apply would accept what never becomes an order: refused at load."""
    plugins["j"] = offering("deduct", *HOLDER, *JOURNAL)
    text = refusal(make_stand, pipeline={"deduct": "j", "journal": "stream"})
    assert "journal 'stream' needs worker role 'apply'" in text
    stand = make_stand(pipeline={"deduct": "j"}, start=False)
    pipeline = stand.runtime.view.pipelines["normal"]
    assert pipeline.kind is Kind.H, "under journal ledger it serves as a holder"
    assert pipeline.holds


def test_tiers_follow_from_the_hooks():
    """Which hooks a deduct plugin offers is its tier."""

    def tier(*hooks):
        return Bound("n", "n", None, object(), dict.fromkeys(hooks, len), "closed").tier

    assert tier("deduct", "places") is Tier.ROUTER
    assert tier("deduct", *HOLDER) is Tier.HOLDER
    assert tier("deduct", *HOLDER, *JOURNAL) is Tier.JOURNAL


def test_an_enqueue_plugin_declares_its_delivery(make_stand, plugins):
    """The class attribute ``delivery`` makes a class an enqueue plugin."""
    text = refusal(make_stand, pipeline={"enqueue": "orders"})
    assert "'orders' has no class attribute 'delivery'" in text
    assert "Delivery.CLAIM, INLINE or BROKER" in text
    plugins["word"] = offering(delivery="claim")
    assert "no class attribute" in refusal(make_stand, pipeline={"enqueue": "word"})


def test_a_broker_needs_its_three_methods(make_stand, plugins):
    """BROKER alone has methods, and needs all of them."""
    plugins["post"] = offering("enqueue", delivery=Delivery.BROKER)
    text = refusal(make_stand, pipeline={"enqueue": "post"})
    assert "'post' has delivery BROKER but lacks receive, settle" in text
    plugins["post"] = offering("enqueue", "receive", "settle", delivery=Delivery.BROKER)
    stand = make_stand(pipeline={"enqueue": "post"}, start=False)
    assert stand.runtime.view.pipelines["normal"].delivery is Delivery.BROKER


def test_inline_needs_the_commit_of_journal_ledger(make_stand, plugins):
    """With a stream there is no commit in the request to persist after."""
    plugins["j"] = offering("deduct", *HOLDER, *JOURNAL)
    text = refusal(make_stand, pipeline={"deduct": "j", "journal": "stream", "enqueue": "direct"})
    assert "'direct' persists in the request, which journal 'stream' has no commit for" in text


def test_a_promise_that_the_pair_cannot_keep_is_refused(make_stand, tmp_path):
    """An in-memory ledger survives nothing; a file does."""
    text = refusal(make_stand, sale={"promise": "database"})
    assert text == (
        "sales.drop.promise: mode 'normal' has 'db-atomic' with journal 'ledger', which promises "
        "'none', less than 'database'; lower it or change the pair"
    )
    stand = make_stand(sale={"promise": "database"}, url=f"sqlite:///{tmp_path / 'a.db'}")
    assert stand.status()["promise"] == "database"
    assert make_stand(sale={"promise": "none"}).engine.world.promises() == {"drop": "none"}


# ------------------------------------------------------------------ options
def test_options_are_typed_and_unknown_ones_named_with_the_nearest(make_stand):
    """Full dotted key, in the table it stands in."""
    text = refusal(
        make_stand,
        pipeline={"deduct": "db-segments"},
        plugin_tables={"db-segments": {"segmnts": 5}},
    )
    assert "plugins.db-segments.segmnts: unknown key (did you mean 'segments'?)" in text
    text = refusal(
        make_stand,
        pipeline={"limit": ["rate"]},
        plugin_tables={"rate": {"per_second": 5}},
        sale={"plugins": {"rate": {"per_second": "many"}}},
    )
    assert "sales.drop.plugins.rate.per_second" in text


def test_on_fault_is_open_or_closed(make_stand, plugins):
    """Settable in config; a plugin may add values; a typo is named."""
    plugins.gate("gate", lambda batch: 1 / 0, on_fault="open")
    tables = {"pipeline": {"filter": ["gate"]}}
    text = refusal(make_stand, plugin_tables={"gate": {"on_fault": "clsed"}}, **tables)
    assert text == (
        "plugins.gate.on_fault: 'clsed' is not one of open, closed (did you mean 'closed'?)"
    )
    assert "plugins.gate.on_fault: '' is not one of" in refusal(
        make_stand, plugin_tables={"gate": {"on_fault": ""}}, **tables
    )
    assert make_stand(**tables).buy("ann").code is Code.ACCEPTED
    closed = make_stand(plugin_tables={"gate": {"on_fault": "closed"}}, **tables)
    assert closed.buy("ann").code is Code.BUSY


def test_on_fault_may_be_an_option_of_the_plugin_itself(make_stand, plugins):
    """Then its own type judges the word; closed is the default of a class that says nothing."""

    class Own:
        on_fault_values = ("local",)

        class Options(PluginOptions):
            on_fault: str = "local"

        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self, batch):
            raise RuntimeError

    plugins["own"] = Own
    stand = make_stand(pipeline={"filter": ["own"]})
    assert stand.engine.wiring.bound("drop", "own").on_fault == "local"
    assert stand.buy("ann").code is Code.BUSY, "only 'open' opens"
    assert stand.engine.wiring.bound("drop", "orders").on_fault == "closed"


def test_a_plugin_that_cannot_be_built_is_named(make_stand, plugins):
    """Under its table when it has one, else where it is named; a ConfigError keeps its words."""

    class Proud:
        def __init__(self, options, context):
            raise self.error

    plugins["proud"] = Proud
    for error in (RuntimeError("no server"), SystemExit("no")):
        Proud.error = error
        text = refusal(make_stand, pipeline={"filter": ["proud"]})
        assert f"pipeline.filter: plugin 'proud' could not be built: {type(error).__name__}" in text
    Proud.error = ConfigError("say it my way")
    tables = {"pipeline": {"filter": ["proud"]}, "plugin_tables": {"proud": {}}}
    assert refusal(make_stand, **tables) == "plugins.proud: say it my way"


def test_every_plugin_table_is_judged_though_no_mode_names_it(make_stand, plugins):
    """A typo in a table's name or options is found; nothing is built for it."""

    class Spare:
        class Options(PluginOptions):
            size: int
            word: str = "a"

        def __init__(self, options, context):
            raise AssertionError("built")

    plugins["spare"] = Spare
    text = refusal(
        make_stand,
        plugin_tables={"rat": {"per_second": 5}, "spare": {"size": "x"}, "vip": {"use": "rte"}},
        sale={"plugins": {"orderz": {}}},
    ).splitlines()
    starts = [line.partition("; known")[0] for line in text]
    assert starts == [
        "plugins.rat: no plugin is named 'rat' (did you mean 'rate'?)",
        "plugins.spare.size: got 'x'; expected a whole number",
        "plugins.vip.use: no plugin is named 'rte' (did you mean 'rate'?)",
        "sales.drop.plugins.orderz: no plugin is named 'orderz' (did you mean 'orders'?)",
    ]
    assert make_stand(plugin_tables={"spare": {"size": 2}}).buy("ann").code is Code.ACCEPTED
    text = refusal(make_stand, plugin_tables={"spare": {}})
    assert text == "plugins.spare.size: is missing; expected a whole number"
    with pytest.raises(ConfigError, match=r"plugins\.rat: no plugin"):
        Engine(convert({"ledger": {"url": "sqlite://"}, "plugins": {"rat": {}}}))


def test_an_option_is_told_under_the_table_that_sets_it(make_stand, plugins):
    """A sale's table lies over the global one: what this lacks that may give."""

    class Pair:
        class Options(PluginOptions):
            size: int
            word: str = "a"

        def __init__(self, options, context):
            pass

    plugins["pair"] = Pair
    own = {"plugins": {"pair": {"size": 3}}}
    make_stand(plugin_tables={"pair": {"word": "b"}}, sale=own)
    text = refusal(make_stand, plugin_tables={"pair": {"word": 1}}, sale=own)
    assert text == "plugins.pair.word: got 1; expected text"
    text = refusal(make_stand, plugin_tables={"pair": {}}, sale={"plugins": {"pair": {"sze": 1}}})
    assert text.splitlines() == [
        "sales.drop.plugins.pair.sze: unknown key (did you mean 'size'?)",
        "sales.drop.plugins.pair.size: is missing; expected a whole number",
    ]


# ------------------------------------------------------------------ modes and instances
def test_all_problems_of_a_mode_are_told_at_once_each_with_its_key(make_stand, plugins):
    """Each under the layer that sets the word, the most specific first."""
    plugins["lim"] = offering("limit")
    tables = {
        "pipeline": {"filter": ["lim"], "limit": ["lim"], "persist": "outbox"},
        "modes": {"b": {"deduct": "orders", "limit": ["...", "lim"]}},
        "sale": {"modes": {"b": {"enqueue": "orders"}}, "pipeline": {"filter": ["...", "gone"]}},
    }
    keys = [line.partition(": ")[0] for line in refusal(make_stand, **tables).splitlines()]
    assert keys == [
        "pipeline.filter",
        "sales.drop.pipeline.filter",
        "pipeline.persist",
        "modes.b.limit",
        "modes.b.deduct",
        "sales.drop.modes.b.enqueue",
    ]


def test_a_mistake_that_two_sales_share_is_told_once(make_stand):
    """It stands in one place."""
    text = refusal(make_stand, pipeline={"deduct": "nope"}, sales={"other": {"skus": {"x": 1}}})
    assert text.count("pipeline.deduct: no plugin is named 'nope'") == 1


def test_a_gate_listed_twice_in_one_stage_is_refused(make_stand):
    """Every attempt would take two tokens; an inherited list counts."""
    text = refusal(
        make_stand,
        pipeline={"limit": ["rate"]},
        plugin_tables={"rate": {"per_second": 5}},
        modes={"b": {"limit": ["...", "rate"]}},
    )
    assert text == "modes.b.limit: 'rate' is listed twice; every attempt would pass it twice"


def test_a_pair_that_does_not_fit_stands_where_its_last_word_is(make_stand):
    """Base deduct and a mode's journal: the mode made the pair."""
    text = refusal(make_stand, modes={"b": {"journal": "stream", "enqueue": "direct"}})
    assert [line.partition(": ")[0] for line in text.splitlines()] == [
        "modes.b.journal",
        "modes.b.enqueue",
    ]


def test_all_hook_problems_of_a_plugin_are_told_and_it_is_built_once(make_stand, plugins):
    """However many modes name it."""
    built = []

    class Many:
        def __init__(self, options, context):
            built.append(1)

        @hookimpl
        async def filter(self, batch):
            return []

        @hookimpl
        def limt(self, batch):
            return []

    plugins["many"] = Many
    text = refusal(make_stand, pipeline={"filter": ["many"]}, modes={"b": {"enqueue": "direct"}})
    assert [line.partition(";")[0] for line in text.splitlines()] == [
        "pipeline.filter: plugin 'many', hook 'filter': a stage is synchronous",
        "pipeline.filter: plugin 'many': no hook is named 'limt' (did you mean 'limit'?)",
    ]
    assert built == [1]


def test_every_mode_of_every_sale_is_compiled_at_load(make_stand):
    """The fallback needed at 20:00 is validated at noon; all problems are told at once."""
    text = refusal(
        make_stand,
        modes={"a": {"deduct": "nope-a"}, "b": {"persist": "nope-b"}},
        sales={"other": {"skus": {"x": 1}, "pipeline": {"enqueue": "nope-c"}}},
    )
    assert "'nope-a'" in text
    assert "'nope-b'" in text
    assert "sales.other.pipeline.enqueue: no plugin is named 'nope-c'" in text
    stand = make_stand(modes={"a": {"deduct": "db-segments"}, "b": {"enqueue": "direct"}})
    assert set(stand.runtime.view.pipelines) == {"normal", "a", "b"}


def test_instances_are_shared_unless_a_sale_has_its_own(make_stand, plugins):
    """One instance per name for all sales; a sale's own table makes the sale's own."""
    built = []

    class Gate:
        class Options(PluginOptions):
            size: int = 1

        def __init__(self, options, context):
            self.size = options.size
            built.append((context.name, context.sale, options.size))

        @hookimpl
        def filter(self, batch):
            return [None] * len(batch)

    plugins["gate"] = Gate
    stand = make_stand(
        pipeline={"filter": ["gate"]},
        modes={"also": {"enqueue": "direct"}},
        plugin_tables={"gate": {"size": 2}},
        sales={
            "shared": {"skus": {"x": 1}},
            "own": {"skus": {"x": 1}, "plugins": {"gate": {"size": 3}}},
        },
    )
    assert sorted(built, key=str) == [("gate", "own", 3), ("gate", None, 2)]
    bound = stand.engine.wiring.bound
    assert bound("drop", "gate").instance is bound("shared", "gate").instance
    assert bound("own", "gate").instance is not bound("drop", "gate").instance


def test_one_instance_serves_every_stage_that_lists_it(make_stand, plugins):
    """Its state is one, whichever stage calls."""
    seen = []

    class Both:
        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self, batch):
            seen.append(("filter", id(self)))
            return [None] * len(batch)

        @hookimpl
        def limit(self, batch):
            seen.append(("limit", id(self)))
            return [Rejection(Code.RATE_LIMITED)] * len(batch)

        @hookimpl
        def batch_settled(self, batch, outcomes):
            seen.append(("settled", id(self)))

    plugins["both"] = Both
    stand = make_stand(pipeline={"filter": ["both"], "limit": ["both"]})
    assert stand.buy("ann").code is Code.RATE_LIMITED
    assert [stage for stage, _ in seen] == ["filter", "limit", "settled"]
    assert len({number for _, number in seen}) == 1


def test_observers_hear_only_sales_that_use_them(make_stand, plugins):
    """A shared instance that one sale lists is not told of another's orders."""
    heard = []

    class Ear:
        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self, batch):
            return [None] * len(batch)

        @hookimpl
        def units_returned(self, sale, skus):
            heard.append(sale.id)

        @hookimpl
        def alarm(self, alarm):
            heard.append(alarm.name)

    plugins["ear"] = Ear
    stand = make_stand(
        sales={"loud": {"skus": {"x": 1}, "pipeline": {"filter": ["ear"]}}},
    )
    stand.engine.sales.create("loud", actor="test")
    stand.engine.sales.restock("drop", "gold", 1, actor="test")
    stand.engine.sales.restock("loud", "x", 1, actor="test")
    stand.engine.alarms("of-drop", "info", "drop")
    stand.engine.alarms("of-loud", "info", "loud")
    stand.engine.alarms("of-all", "info")
    assert heard == ["loud", "of-loud", "of-all"]


def test_state_survives_a_rebuild(make_stand, plugins):
    """Limiter, breaker and cache state outlives the instance, by its name (L11)."""

    class Counting:
        def __init__(self, options, context):
            self.state = context.state
            self.state["built"] = self.state.get("built", 0) + 1

        @hookimpl
        def filter(self, batch):
            return [None] * len(batch)

        def close(self):
            self.state["closed"] = self.state.get("closed", 0) + 1
            raise SystemExit("a close that fails stops nobody else's")

    plugins["counting"] = Counting
    stand = make_stand(
        pipeline={"filter": ["counting"]},
        sales={"own": {"skus": {"x": 1}, "plugins": {"counting": {"use": "counting"}}}},
    )
    engine, old = stand.engine, stand.engine.wiring
    fresh = Wiring(
        engine.settings,
        engine.ledger,
        clock=stand.clock,
        alarm=engine.alarms,
        metrics=engine.metrics,
        stores=engine._stores,
        fulfil=engine._fulfil,
        unsettled=engine.custody.take,
        owner="test",
    )
    fresh.compile_sale(stand.runtime.view.sale)
    old.close()
    shared, own = (fresh.bound(sale, "counting").instance.state for sale in ("drop", "own"))
    assert shared == own == {"built": 2, "closed": 1}
    assert shared is not own
    fresh.close()
    fresh.close()
    assert shared["closed"] == 2, "closing twice is once"


def test_a_plugin_without_places_has_one(make_stand, plugins):
    """The least a router is: deduct alone."""

    class Least:
        def __init__(self, options, context):
            pass

        @hookimpl
        def deduct(self, batch):
            return [Reservation(attempt, "all") for attempt in batch]

    plugins["least"] = Least
    stand = make_stand({"gold": 1}, pipeline={"deduct": "least"})
    assert stand.buy("ann").code is Code.ACCEPTED
    assert stand.buy("bob").code is Code.SOLD_OUT


def test_wiring_errors_are_config_errors(make_stand):
    """One class to catch at load; the attempt's path never raises it."""
    with pytest.raises(WiringError):
        make_stand(pipeline={"deduct": "nope"}, start=False)
    with pytest.raises(ValueError, match="nope"):
        make_stand(pipeline={"deduct": "nope"}, start=False)
