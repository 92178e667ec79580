-- A run is found by the key that it was triggered with. Only what somebody triggers has one, so the
-- fires of schedules pay nothing for this.
CREATE INDEX runs_of_key ON runs (lock_key, id) WHERE trigger_kind IN ('manual', 'delayed');
