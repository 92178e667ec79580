//! What a member sees of the others.

use std::collections::BTreeMap;
use std::time::Duration;

use taskparty_common::name::Instance;
use taskparty_nats::lease::Uptime;

/// The members that were heard of lately.
#[derive(Debug)]
pub(super) struct View {
    heard: BTreeMap<Instance, Uptime>,
    /// Who was silent for this long has gone.
    ttl: Duration,
    /// This member was cut off at the last look: what it did not hear says nothing.
    was_cut_off: bool,
}

impl View {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { heard: BTreeMap::new(), ttl, was_cut_off: true }
    }

    /// `instance` has sent a heartbeat, or its heartbeat is gone.
    pub(super) fn heard(&mut self, instance: Instance, lives: bool) {
        if lives {
            self.heard.insert(instance, Uptime::now());
        } else {
            self.heard.remove(&instance);
        }
    }

    /// Looks for members that have fallen silent. While this member is cut off itself
    /// (`connected` is false) it knows nothing of the others; and afterwards they begin anew.
    pub(super) fn look(&mut self, connected: bool) {
        if !connected {
            self.was_cut_off = true;
            return;
        }
        if std::mem::take(&mut self.was_cut_off) {
            self.heard.values_mut().for_each(|heard| *heard = Uptime::now());
        }
        self.heard.retain(|_, heard| heard.ago() <= self.ttl);
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Instance> {
        self.heard.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(view: &View) -> Vec<&str> {
        view.members().map(Instance::as_str).collect()
    }

    #[test]
    fn who_falls_silent_is_gone_unless_we_could_not_hear() {
        let mut view = View::new(Duration::ZERO);
        let a = Instance::new("a").unwrap();
        view.heard(a.clone(), true);
        view.look(false);
        assert_eq!(names(&view), ["a"], "cut off: nothing is known");
        while view.heard[&a].ago().is_zero() {}
        let before = view.heard[&a];
        view.look(true);
        assert!(view.heard.get(&a).is_none_or(|heard| heard.ago() < before.ago()));
        let mut view = View::new(Duration::ZERO);
        view.look(true);
        view.heard(a.clone(), true);
        while view.heard[&a].ago().is_zero() {}
        view.look(true);
        assert_eq!(names(&view), Vec::<&str>::new());
        view.heard(a.clone(), true);
        view.heard(a, false);
        assert_eq!(names(&view), Vec::<&str>::new());
    }
}
