-- SPDX-License-Identifier: Apache-2.0
-- The memory of the worker that holds a rank, when it was given to it: which plan is about this rank, and whether one
-- rank alone was short. 0 = given out before this version.
ALTER TABLE assignments ADD COLUMN capacity_bytes INTEGER NOT NULL DEFAULT 0;
