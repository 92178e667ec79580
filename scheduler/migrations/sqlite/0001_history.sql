-- History: what happened, and what is still to be said of it. The log writer is the only writer.
-- Instants are milliseconds since 1970, UTC. Ids of runs are the 16 bytes of their UUID, whose
-- first 6 are the instant: the order of ids is the order of fires.

CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

-- What runs were made with. The digest is of the spec's text, so that no revision number that
-- comes twice (a bucket made anew) can give a run another definition than its own.
CREATE TABLE definitions (
    digest   BLOB    NOT NULL PRIMARY KEY,
    job      TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    spec     TEXT    NOT NULL
);

CREATE TABLE runs (
    id              BLOB    NOT NULL PRIMARY KEY,
    job             TEXT    NOT NULL,
    app             TEXT    NOT NULL,
    state           TEXT    NOT NULL,
    -- The trigger's result: all of it NULL until the fired record comes.
    handler         TEXT,
    lock_key        TEXT,
    revision        INTEGER,
    since           INTEGER,
    definition      BLOB    REFERENCES definitions (digest),
    owner           TEXT,
    trigger_kind    TEXT,
    trigger_result  TEXT,
    trigger_message TEXT,
    skip_reason     TEXT,
    skip_count      INTEGER,
    skip_first      INTEGER,
    fire_time       INTEGER,
    fired_at        INTEGER,
    start_by        INTEGER,
    shards          INTEGER,
    params          TEXT,
    -- The handlers' results, of all shards together.
    code            TEXT,
    attempts        INTEGER NOT NULL,
    started_at      INTEGER,
    ended_at        INTEGER
);
-- Each list of runs is a union over states of one of these, newest first.
CREATE INDEX runs_of_job ON runs (job, state, id);
CREATE INDEX runs_of_app ON runs (app, state, id);
CREATE INDEX runs_in_state ON runs (state, id);

CREATE TABLE attempts (
    run            BLOB    NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    shard          INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    state          TEXT    NOT NULL,
    -- NULL while it goes on.
    outcome        TEXT,
    code           TEXT,
    message        TEXT,
    output         TEXT,
    truncated      INTEGER NOT NULL,
    retryable      INTEGER NOT NULL,
    instance       TEXT,
    delivery       INTEGER,
    due_at         INTEGER,
    dispatched_at  INTEGER,
    start_by       INTEGER,
    started_at     INTEGER,
    ended_at       INTEGER,
    progress       TEXT,
    notes          TEXT,
    -- When the sweep looks at it; NULL once it has ended.
    check_at       INTEGER,
    -- How the sweep will end it at that time, when no result comes: outcome, code, sentence.
    ending         TEXT,
    PRIMARY KEY (run, shard, attempt)
);
CREATE INDEX attempts_to_check ON attempts (check_at) WHERE check_at IS NOT NULL;

CREATE TABLE alerts (
    id         TEXT    NOT NULL PRIMARY KEY,
    kind       TEXT    NOT NULL,
    job        TEXT,
    run        BLOB    REFERENCES runs (id) ON DELETE CASCADE,
    state      TEXT,
    code       TEXT,
    message    TEXT    NOT NULL,
    attempts   INTEGER NOT NULL,
    fire_time  INTEGER,
    created_at INTEGER NOT NULL
);
CREATE INDEX alerts_of_run ON alerts (run) WHERE run IS NOT NULL;

-- Decisions that are made and not yet published.
CREATE TABLE outbox (
    id         TEXT    NOT NULL PRIMARY KEY,
    kind       TEXT    NOT NULL,
    run        BLOB    REFERENCES runs (id) ON DELETE CASCADE,
    shard      INTEGER,
    attempt    INTEGER,
    due_at     INTEGER,
    tries      INTEGER NOT NULL,
    -- When to try to publish it; 0 until that has failed once.
    next_at    INTEGER NOT NULL
);
CREATE INDEX outbox_next ON outbox (next_at);
CREATE INDEX outbox_of_run ON outbox (run) WHERE run IS NOT NULL;

-- Messages that could not be taken in, as they came.
CREATE TABLE set_aside (
    seq        INTEGER NOT NULL,
    line       INTEGER NOT NULL,
    subject    TEXT    NOT NULL,
    payload    BLOB    NOT NULL,
    reason     TEXT    NOT NULL,
    stored_at  INTEGER NOT NULL,
    PRIMARY KEY (seq, line)
);
