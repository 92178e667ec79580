-- Attempts that are for one executor alone; and those that went to another because it had gone.
ALTER TABLE attempts ADD COLUMN target TEXT;
ALTER TABLE attempts ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN moved INTEGER NOT NULL DEFAULT 0;
-- Which executors open attempts are for.
CREATE INDEX attempts_of_target ON attempts (target) WHERE target IS NOT NULL AND check_at IS NOT NULL;
