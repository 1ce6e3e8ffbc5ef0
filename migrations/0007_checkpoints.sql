-- SPDX-License-Identifier: Apache-2.0
-- Checkpoints: what was saved, and what a run or a generation begins from. A row with state COMMITTED is what makes
-- a folder a checkpoint; the files of any other are nothing to go on from. States: enum zt_ckpt_state
-- (coordinator/machine.h).
CREATE TABLE checkpoints (
    run_id         TEXT    NOT NULL REFERENCES runs (run_id),
    step           INTEGER NOT NULL CHECK (step > 0),
    generation     INTEGER NOT NULL,            -- that saved it
    state          INTEGER NOT NULL CHECK (state BETWEEN 1 AND 5),
    world          INTEGER NOT NULL,            -- parts it has
    replicate      INTEGER NOT NULL,
    shard          INTEGER NOT NULL,
    tensor         INTEGER NOT NULL,
    manifest       BLOB    NOT NULL,            -- SHA-256 of manifest.json; zero until committed
    bytes          INTEGER NOT NULL,            -- of the parts that are in
    created_ms     INTEGER NOT NULL,
    committed_ms   INTEGER NOT NULL,
    pinned         INTEGER NOT NULL,
    verified       INTEGER NOT NULL,            -- read back whole
    stall_seconds  REAL    NOT NULL,            -- highest of the parts that are in
    write_seconds  REAL    NOT NULL,
    parameter_hash TEXT    NOT NULL,
    state_hash     TEXT    NOT NULL,
    message        TEXT    NOT NULL,            -- why CORRUPT or FAILED
    PRIMARY KEY (run_id, step),
    CHECK (state <> 2 OR (length(manifest) = 32 AND manifest <> zeroblob(32) AND committed_ms > 0))
) STRICT, WITHOUT ROWID;

-- The parts of a checkpoint that is WRITING, one per rank; they go when it is anything else.
CREATE TABLE checkpoint_shards (
    run_id         TEXT    NOT NULL,
    step           INTEGER NOT NULL,
    rank           INTEGER NOT NULL,
    generation     INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,
    index_sha256   BLOB    NOT NULL,
    parameter_hash BLOB    NOT NULL,            -- this rank's share of the sum, 16 bytes, little-endian
    state_hash     BLOB    NOT NULL,
    stall_seconds  REAL    NOT NULL,
    write_seconds  REAL    NOT NULL,
    PRIMARY KEY (run_id, step, rank)
) STRICT, WITHOUT ROWID;

-- Where a run saves and how much it keeps, and the checkpoint of another run it begins from, as resolved at submit.
-- No row: neither.
CREATE TABLE run_saves (
    run_id              TEXT    PRIMARY KEY REFERENCES runs (run_id),
    folder              TEXT    NOT NULL,       -- holds step-NNNNNNNN; '' = it saves nothing
    interval            INTEGER NOT NULL,
    keep_latest_k       INTEGER NOT NULL,
    keep_every          INTEGER NOT NULL,
    source_run          TEXT    NOT NULL,       -- '' = none
    source_name         TEXT    NOT NULL,
    source_step         INTEGER NOT NULL,
    source_folder       TEXT    NOT NULL,
    weights_only        INTEGER NOT NULL,
    accept_batch_change INTEGER NOT NULL
) STRICT;

ALTER TABLE runs ADD COLUMN saved_step INTEGER NOT NULL DEFAULT 0;     -- highest step ever committed
ALTER TABLE runs ADD COLUMN no_progress INTEGER NOT NULL DEFAULT 0;    -- generations in a row without a new one
ALTER TABLE runs ADD COLUMN source_corrupt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN load_seconds REAL NOT NULL DEFAULT -1; -- < 0 = not measured
ALTER TABLE attempts ADD COLUMN start_from INTEGER NOT NULL DEFAULT 0; -- enum zt_start
ALTER TABLE attempts ADD COLUMN start_step INTEGER NOT NULL DEFAULT 0; -- of the checkpoint it began from
