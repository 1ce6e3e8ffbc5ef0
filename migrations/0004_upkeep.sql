-- SPDX-License-Identifier: Apache-2.0
-- The end of a trainer's output is known, so that whoever follows a run sees its last lines; and old events may
-- go (coordinator/rows.c says which): they are never changed, but no longer kept for ever.
ALTER TABLE log_streams ADD COLUMN ended INTEGER NOT NULL DEFAULT 0;
DROP TRIGGER events_stay;
