-- What people ask of runs: that they stop, or are tried again.
ALTER TABLE runs ADD COLUMN cancel_requested_at INTEGER;
ALTER TABLE runs ADD COLUMN cancel_requested_by TEXT;
-- How many times the run was retried by hand; of an attempt, in which of those rounds it was made.
ALTER TABLE runs ADD COLUMN round INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN round INTEGER NOT NULL DEFAULT 0;
-- Runs that are to stop and have not ended: they are asked again each second.
CREATE INDEX runs_to_stop ON runs (id) WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL;
