-- What whoever made a delayed trigger said of its run, as JSON: by whom, for which executor, with which
-- overlap policy. Only while it waits for its time, so that one whose trigger went missing is made as it was.
ALTER TABLE runs ADD COLUMN said TEXT;
