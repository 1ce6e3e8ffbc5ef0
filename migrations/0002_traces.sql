-- SPDX-License-Identifier: Apache-2.0
-- The collectives of captured steps: one row per run, step and rank, more where a step is long (parts from
-- 0). Rows of a newer generation replace those of an older one. Kept: steps 1 to 3 and the newest captured
-- ones, as coordinator/rows_traces.c says.
CREATE TABLE step_trace (
    run_id     TEXT    NOT NULL,
    step       INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    part       INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    bytes      INTEGER NOT NULL, -- of trace
    trace      BLOB    NOT NULL, -- packed zt.StepTrace
    PRIMARY KEY (run_id, step, rank, part)
) STRICT, WITHOUT ROWID;
