-- SPDX-License-Identifier: Apache-2.0
-- Formations in a row that ended with COMM_INIT_TIMEOUT: from the third on they count.
ALTER TABLE runs ADD COLUMN init_timeouts INTEGER NOT NULL DEFAULT 0;
