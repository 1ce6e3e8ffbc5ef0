-- SPDX-License-Identifier: Apache-2.0
-- Loss scale and skipped steps beside the other figures of a step, and the number formats that ranks found in
-- use. NULL: not measured, as in rows of an earlier version.
ALTER TABLE step_rank ADD COLUMN loss_scale REAL;
ALTER TABLE step_rank ADD COLUMN skipped INTEGER;
ALTER TABLE step_rollup ADD COLUMN clip_coefficient REAL;
ALTER TABLE step_rollup ADD COLUMN loss_scale REAL;
ALTER TABLE step_rollup ADD COLUMN skipped INTEGER;
ALTER TABLE step_rollup ADD COLUMN skipped_steps INTEGER; -- of the generation so far
ALTER TABLE run_progress ADD COLUMN loss_scale REAL;
ALTER TABLE run_progress ADD COLUMN skipped_steps INTEGER;
CREATE TABLE rank_dtypes (
    run_id     TEXT    NOT NULL,
    rank       INTEGER NOT NULL,
    generation INTEGER NOT NULL, -- the newest that told
    report     BLOB    NOT NULL, -- packed zt.DtypesReport
    PRIMARY KEY (run_id, rank)
) STRICT, WITHOUT ROWID;
