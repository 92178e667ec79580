//! A monotonic clock that counts the time for which the machine was suspended.

use std::time::Duration;

/// Time since the machine started, suspend included (`CLOCK_BOOTTIME` on Linux).
///
/// [`std::time::Instant`] stands still while a laptop sleeps or a virtual machine is paused; a
/// lease measured with it would be held long after the server gave it to another. Elsewhere than
/// on Linux this is the ordinary monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uptime(Duration);

impl Uptime {
    /// Now.
    #[cfg(target_os = "linux")]
    pub fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Self(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0)))
    }

    /// Now.
    #[cfg(not(target_os = "linux"))]
    pub fn now() -> Self {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        Self(START.get_or_init(std::time::Instant::now).elapsed())
    }

    /// The time from now to `self`; zero once it has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    /// How long ago `self` was; zero when it is still to come.
    pub fn ago(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// `self` later by `time`.
    pub fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// Waits until `self`, looking at least twice a second: timers stand still in a suspend.
    pub async fn reached(self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(Duration::from_millis(500))).await;
        }
    }
}
