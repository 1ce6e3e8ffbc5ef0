-- SPDX-License-Identifier: Apache-2.0
-- The first schema of a coordinator's state. Applied in one transaction by coordinator/migrate.c, which
-- records the checksum of this text: an applied file is never edited, a change is a new file.
--
-- States and reasons are numbers: enum zt_run_state, zt_worker_state (coordinator/machine.h) and
-- enum zt_reason (core/reason.h). *_ms are wall-clock milliseconds since 1970, for people only: rows
-- are ordered by their numbers. 0 = not yet. Communicator ids are never stored: they are secrets that
-- live for one formation, and a formation does not outlive its coordinator.

PRAGMA application_id = 2054451822; -- "ztrn": tells our files from other programs'

CREATE TABLE migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,      -- XXH3-128 of the file, hex
    applied_ms INTEGER NOT NULL
) STRICT;

-- One row. epoch counts the starts of the coordinator; every write transaction checks that it is still ours.
CREATE TABLE meta (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    epoch      INTEGER NOT NULL,
    started_ms INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (1, 0, 0);

CREATE TABLE runs (
    run_id           TEXT    PRIMARY KEY,       -- ULID
    name             TEXT    NOT NULL,
    place            INTEGER NOT NULL UNIQUE,   -- order of submission
    state            INTEGER NOT NULL,
    reason           INTEGER NOT NULL DEFAULT 0,
    detail           TEXT    NOT NULL DEFAULT '', -- why it waits, why it ended
    cause_rank       INTEGER NOT NULL DEFAULT -1,
    generation       INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    restarts_counted INTEGER NOT NULL,
    failures_in_row  INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    workers          INTEGER NOT NULL,
    replicate        INTEGER NOT NULL,
    shard            INTEGER NOT NULL,
    tensor           INTEGER NOT NULL,
    best_step        INTEGER NOT NULL,
    submitted_ms     INTEGER NOT NULL,
    started_ms       INTEGER NOT NULL,
    ended_ms         INTEGER NOT NULL,
    parameter_hash   TEXT    NOT NULL DEFAULT '',
    priority         INTEGER NOT NULL,
    steps            INTEGER NOT NULL,          -- 0 = not known before the data is read
    config           TEXT    NOT NULL,          -- JSON: what the scheduler needs, so that recovery parses no YAML
    CHECK (state NOT IN (21, 22) OR reason <> 0) -- FAILED and CANCELLED always say why
) STRICT;
CREATE INDEX runs_by_name  ON runs (name, place);
CREATE INDEX runs_by_state ON runs (state);

-- What was submitted, apart from runs because a run row changes often and this never does.
CREATE TABLE run_specs (
    run_id         TEXT    PRIMARY KEY REFERENCES runs (run_id),
    run_yaml       BLOB    NOT NULL,            -- verbatim
    file           TEXT    NOT NULL,
    overrides      TEXT    NOT NULL,            -- JSON array of --set strings
    normalised     TEXT    NOT NULL,
    hash           TEXT    NOT NULL,            -- XXH3-128 of normalised
    mode           TEXT    NOT NULL,
    plan           BLOB,
    per_rank_keep  INTEGER NOT NULL,
    warmup_steps   INTEGER NOT NULL,
    max_restarts   INTEGER NOT NULL
) STRICT;

-- A formation of a run (a generation) and how it ended.
CREATE TABLE attempts (
    run_id         TEXT    NOT NULL REFERENCES runs (run_id),
    generation     INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    world          INTEGER NOT NULL,
    started_ms     INTEGER NOT NULL,
    ended_ms       INTEGER NOT NULL,
    reason         INTEGER NOT NULL,
    rank           INTEGER NOT NULL,            -- root cause, -1 = none
    worker_id      TEXT    NOT NULL,
    message        TEXT    NOT NULL,
    last_step      INTEGER NOT NULL,
    steps_redone   INTEGER NOT NULL,
    counted        INTEGER NOT NULL,
    detect_seconds REAL    NOT NULL,            -- < 0 = not measured
    stop_seconds   REAL    NOT NULL,
    start_seconds  REAL    NOT NULL,
    form_seconds   REAL    NOT NULL,
    PRIMARY KEY (run_id, generation)
) STRICT, WITHOUT ROWID;

-- Which worker holds which rank of a generation: the lease.
CREATE TABLE assignments (
    run_id          TEXT    NOT NULL,
    generation      INTEGER NOT NULL,
    rank            INTEGER NOT NULL,
    local_rank      INTEGER NOT NULL,
    workers_on_host INTEGER NOT NULL,
    worker_id       TEXT    NOT NULL,
    host            TEXT    NOT NULL,
    incarnation     BLOB    NOT NULL,
    done            INTEGER NOT NULL,
    released        INTEGER NOT NULL,
    done_steps      INTEGER NOT NULL,
    parameter_hash  TEXT    NOT NULL,
    PRIMARY KEY (run_id, generation, rank)
) STRICT, WITHOUT ROWID;

-- The first report of each rank that failed; place 0 came first.
CREATE TABLE failures (
    run_id     TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    reason     INTEGER NOT NULL CHECK (reason <> 0),
    worker_id  TEXT    NOT NULL,
    message    TEXT    NOT NULL,
    step       INTEGER NOT NULL,
    exit_code  INTEGER NOT NULL,
    signal     INTEGER NOT NULL,
    peer       INTEGER NOT NULL,
    offset_ms  INTEGER NOT NULL,
    phase      TEXT,
    oom        BLOB,                            -- packed zt.OomDetail
    last_log   BLOB,
    PRIMARY KEY (run_id, generation, rank)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    worker_id      TEXT    PRIMARY KEY,
    host           TEXT    NOT NULL,
    device         TEXT    NOT NULL,
    version        TEXT    NOT NULL,
    isa            TEXT    NOT NULL,
    backend        TEXT    NOT NULL,
    address        TEXT    NOT NULL,
    incarnation    BLOB    NOT NULL,
    state          INTEGER NOT NULL,
    flags          INTEGER NOT NULL,
    capacity_bytes INTEGER NOT NULL,
    threads        INTEGER NOT NULL,
    pid            INTEGER NOT NULL,
    run_id         TEXT    NOT NULL,            -- '' = none
    generation     INTEGER NOT NULL,
    rank           INTEGER NOT NULL,
    local_rank     INTEGER NOT NULL,
    at_ms          INTEGER NOT NULL
) STRICT;

-- One rank, one step. The columns are what people and the roll-up ask for; `report` is the whole packed
-- zt.StepReport, so that a new measurement needs no migration. A row is replaced only by one of the same or
-- a newer generation. Kept for the newest per_rank_keep steps and every 100th.
CREATE TABLE step_rank (
    run_id               TEXT    NOT NULL,
    step                 INTEGER NOT NULL,
    rank                 INTEGER NOT NULL,
    generation           INTEGER NOT NULL,
    loss                 REAL,
    tokens               INTEGER,
    step_seconds         REAL,
    exposed_comm_seconds REAL,
    peak_allocated_bytes INTEGER,
    peak_reserved_bytes  INTEGER,
    report               BLOB    NOT NULL,
    PRIMARY KEY (run_id, step, rank)
) STRICT, WITHOUT ROWID;

-- One step over all ranks of one generation, written when the last of them is in. Never thinned out.
CREATE TABLE step_rollup (
    run_id                    TEXT    NOT NULL,
    step                      INTEGER NOT NULL,
    generation                INTEGER NOT NULL,
    ranks                     INTEGER NOT NULL,
    at_ms                     INTEGER NOT NULL,
    loss                      REAL,
    tokens                    INTEGER,          -- sum
    tokens_per_second         REAL,
    step_seconds              REAL,             -- max
    mean_step_seconds         REAL,
    exposed_comm_seconds      REAL,             -- max
    mean_exposed_comm_seconds REAL,
    peak_allocated_bytes      INTEGER,          -- max, of peak_rank
    peak_reserved_bytes       INTEGER,          -- max
    peak_rank                 INTEGER,
    report                    BLOB    NOT NULL, -- packed zt.StepReport of the roll-up
    PRIMARY KEY (run_id, step)
) STRICT, WITHOUT ROWID;

-- Where a run stands: its newest roll-up, so that lists need no search.
CREATE TABLE run_progress (
    run_id               TEXT    PRIMARY KEY,
    generation           INTEGER NOT NULL,
    step                 INTEGER NOT NULL,
    loss                 REAL,
    tokens_per_second    REAL,
    peak_allocated_bytes INTEGER,
    exposed_share        REAL,
    at_ms                INTEGER NOT NULL
) STRICT;

-- Peaks by window (init, first_step, steady, eval) for the newest generation a rank reported in.
CREATE TABLE window_peak (
    run_id              TEXT    NOT NULL,
    rank                INTEGER NOT NULL,
    window              TEXT    NOT NULL,
    generation          INTEGER NOT NULL,
    step                INTEGER NOT NULL,       -- where the peak was
    peak_allocated_bytes INTEGER NOT NULL,
    peak_reserved_bytes INTEGER NOT NULL,       -- the window's own maximum
    peak                BLOB    NOT NULL,       -- packed zt.WindowPeak
    PRIMARY KEY (run_id, rank, window)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms      INTEGER NOT NULL,
    run_id     TEXT    NOT NULL,                -- '' = none
    worker_id  TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind <> ''),
    from_state TEXT    NOT NULL,
    to_state   TEXT    NOT NULL,
    reason     INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    level      INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    message    TEXT    NOT NULL,
    seq        INTEGER                          -- of a worker's own event: a repeat is dropped
) STRICT;
CREATE INDEX events_by_run ON events (run_id, id);
CREATE UNIQUE INDEX events_once ON events (run_id, generation, rank, seq) WHERE seq IS NOT NULL;
CREATE TRIGGER events_keep BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_stay BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;

-- Output of the trainers. (run, generation, rank) is one stream of bytes; log_streams says how far it is stored.
CREATE TABLE logs (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id     TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    offset     INTEGER NOT NULL,                -- of the first byte in its stream
    err        INTEGER NOT NULL,                -- 1 = standard error
    at_ms      INTEGER NOT NULL,
    data       BLOB    NOT NULL
) STRICT;
CREATE INDEX logs_by_run ON logs (run_id, generation, id);
CREATE TABLE log_streams (
    run_id     TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    next       INTEGER NOT NULL,
    PRIMARY KEY (run_id, generation, rank)
) STRICT, WITHOUT ROWID;
CREATE TABLE log_usage (                        -- against the quota of a run; the oldest pieces go first
    run_id  TEXT    PRIMARY KEY,
    stored  INTEGER NOT NULL,
    dropped INTEGER NOT NULL
) STRICT;

-- Requests of clients that were carried out: a repeat of the key gets the same answer. Kept for 24 h.
CREATE TABLE rpc_dedup (
    key    BLOB    PRIMARY KEY,
    verb   TEXT    NOT NULL,
    run_id TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    at_ms  INTEGER NOT NULL
) STRICT;
