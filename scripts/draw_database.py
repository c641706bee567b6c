"""The pictures of the database: what a statement and a connection go through.

`draw_pictures.py` writes them.
"""

from __future__ import annotations

from drawing import Flow, Sequence


def database() -> Flow:
    f = Flow("The components of the database layer", gap=(104, 40))
    f.node("tasks", 0, 0, "your tasks", "plain", "pill")
    f.node(
        "Database",
        1,
        0,
        "`Database`: one object for all tasks\na template: URL, driver, options",
        "good",
    )
    f.node(
        "ParsedStatement",
        2,
        0,
        "`ParsedStatement`: each text is analysed once\nplaceholders, touched state, control",
        "plain",
    )
    f.node(
        "LoopDatabase",
        1,
        1,
        "`LoopDatabase`: the database in one event loop\nthe hooks of its pool; who holds what",
        "wait",
    )
    f.node("Session", 0, 1, "`Session`: what a task holds\nover several statements", "wait")
    f.node("Pool", 2, 1, "`Pool` of `DriverConnection`s\nsizes, line, breaker, timeouts", "act")
    f.node("open", 0, 2, "`Transaction`, `Statement`, `Stream`:\nwhat is open, and pins it", "wait")
    f.node("Driver", 1, 2, "`Driver`: makes connections,\nand knows what errors mean", "hook")
    f.node(
        "DriverConnection",
        2,
        2,
        "`DriverConnection`: one connection,\nwith a few notes on it",
        "hook",
    )
    f.node("server", 2, 3, "the database server", "quiet", "pill")
    f.edge("tasks", "Database", "`Database.execute`")
    f.edge("Database", "ParsedStatement")
    f.edge("Database", "LoopDatabase", "one for each loop")
    f.edge("LoopDatabase", "Session", "only if pinned")
    f.edge("LoopDatabase", "Pool", "acquire, release")
    f.edge("Session", "open")
    f.edge("LoopDatabase", "Driver", "`Driver.connect`")
    f.edge("Driver", "DriverConnection", "makes")
    f.edge("Pool", "DriverConnection", "keeps")
    f.edge("DriverConnection", "server", "the driver's own connection: `DriverConnection.raw`")
    f.edge(
        "open",
        "DriverConnection",
        "run on the connection of its session",
        sides="SS",
        lane=28,
        shift=(0, -50),
        segment=1,
        at=0.4,
        dashed=True,
    )
    return f


def connection() -> Flow:
    f = Flow("The life of a connection", gap=(66, 36))
    f.node("made", 0, 0, "made\n`ConnectionHooks.connect`", "hook", "pill")
    f.node("idle", 0, 1, "idle in the pool", "good", "pill")
    f.node(
        "look",
        1,
        1,
        "does it look alive?\n`DriverConnection.looks_dead`, `DriverConnection.peer_closed`",
        "act",
        "ask",
    )
    f.node("ping", 1, 0, "suspect, or idle for `ping_after_idle`:\n`DriverConnection.ping`", "act")
    f.node("statement", 1, 2, "one statement runs on it\n`DriverConnection.execute`", "core")
    f.node(
        "broken",
        2,
        1,
        "broken: killed, timed out, cancelled\nin mid-query; the server is told to stop",
        "bad",
    )
    f.node("pinned", 1, 3, "does something pin it?\n`Session.pin_reason`", "wait", "ask")
    f.node("holder", 2, 3, "kept by the task: `Session`\ntransaction, open statement or stream,\n"
           "touched session state, a block", "wait")  # fmt: skip
    f.node("dirty", 0, 3, "anything left on it?\n`ConnectionHooks.before_release`", "act", "ask")
    f.node("clean", 0, 4, "rolled back, reset, greeted again\n`ConnectionHooks._clean`", "act")
    f.node(
        "gone", 2, 0, "closed, and replaced on demand\n`ConnectionHooks.disconnect`", "bad", "pill"
    )
    f.edge("made", "idle")
    f.edge("idle", "look", "asked for")
    f.edge("look", "ping", "not known", sides="NS")
    f.edge("ping", "statement", "answers", sides="WW", lane=24, segment=1, at=0.72, below=True)
    f.edge("ping", "gone", "silent")
    f.edge("look", "statement", "yes")
    f.edge("look", "broken", "no")
    f.edge("broken", "gone")
    f.edge("statement", "broken", "lost or cut off", sides="ES", segment=0)
    f.edge("statement", "pinned", "done")
    f.edge("pinned", "holder", "yes")
    f.edge(
        "holder",
        "statement",
        "the next statement\nof this task",
        sides="NE",
        shift=(0, 12),
        segment=0,
    )
    f.edge("pinned", "dirty", "no")
    f.edge(
        "holder",
        "dirty",
        "the end of the block or of the task",
        sides="SS",
        shift=(0, 60),
        lane=18,
        segment=1,
        below=True,
    )
    f.edge("dirty", "idle", "no: no round trip")
    f.edge("dirty", "clean", "yes")
    f.edge("clean", "idle", "", sides="WW", lane=22)
    return f


def connect() -> Sequence:
    s = Sequence(
        "How a connection is made",
        [
            ("pool", "`Pool`", "act"),
            ("branch", "`LoopDatabase`", "wait"),
            ("db", "`Database`\nthe template", "good"),
            ("driver", "`Driver`", "hook"),
            ("server", "the server", "quiet"),
            ("you", "your code", "plain"),
        ],
        gap=24,
    )
    s.call("pool", "branch", "`ConnectionHooks.connect`")
    s.note(
        "pool",
        "in a task of the pool, within\n`create_timeout`; whoever asked\nmay be gone by then",
    )
    s.call("branch", "db", "`Database._get_password`")
    s.call("db", "you", "`password`, if it is a callable: asked for every connection")
    s.answer("you", "db", "a token of now")
    s.answer("db", "branch", "`Secret`: shows itself to nobody")
    s.call("branch", "driver", "`Driver.connect`")
    s.call("driver", "driver", "`fresh`: copies of the\narguments")
    s.call("driver", "server", "handshake, TLS, login")
    s.answer("driver", "branch", "`DriverConnection`")
    s.call("branch", "branch", "`ConnectionHooks._greet`")
    s.call("branch", "you", "`on_connect`, with the driver's own connection")
    s.answer(
        "you", "branch", 'what it has set is not "touched"; a transaction it left is rolled back'
    )
    s.answer("branch", "pool", "the connection: counted from now on")
    s.begin(
        "if anything of this fails: `ConnectionHooks.disconnect` closes what was half made,\n"
        "and the error goes to the oldest waiter and to the breaker"
    )
    s.end()
    return s
