//! Stabilisation window of a node's request for addresses.

use std::{collections::VecDeque, time::Duration};

use weft_model::Moment;

/// Stabilisation window: scales up at once, and down only to the largest target of the window.
///
/// Without it a demand that flaps around the edge of a batch costs a write, a release and an
/// allocation of a whole batch each time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    length: Duration,
    /// Decreasing targets, each with the last time at which it was wanted.
    targets: VecDeque<(Moment, u32)>,
}

impl Window {
    /// A window of this length; zero scales down at once.
    pub fn new(length: Duration) -> Self {
        Self {
            length,
            targets: VecDeque::new(),
        }
    }

    /// True if no target was observed yet.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Records a target and returns the number to request.
    pub fn observe(&mut self, target: u32, now: Moment) -> u32 {
        if let Some((until, _)) = self.targets.back_mut() {
            *until = now;
        }
        while (self.targets.front()).is_some_and(|(until, _)| *until + self.length <= now) {
            self.targets.pop_front();
        }
        while self.targets.back().is_some_and(|(_, less)| *less <= target) {
            self.targets.pop_back();
        }
        self.targets.push_back((now, target));
        self.targets.front().map_or(target, |(_, most)| *most)
    }

    /// Discards the history: from now on only this target counts.
    pub fn skip(&mut self, target: u32, now: Moment) -> u32 {
        self.targets.clear();
        self.observe(target, now)
    }

    /// Time at which less may be requested, if no other target is observed before.
    pub fn wake(&self) -> Option<Moment> {
        let (until, _) = self.targets.front().filter(|_| self.targets.len() > 1)?;
        Some(*until + self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::seconds(seconds)
    }

    #[test]
    fn a_target_that_flaps_is_held_at_its_largest() {
        let mut window = Window::new(Duration::from_secs(120));
        assert_eq!(window.observe(16, at(0)), 16);
        for second in 1..500 {
            let target = if second % 2 == 0 { 16 } else { 32 };
            assert_eq!(window.observe(target, at(second)), 32, "{second}");
        }
    }

    #[test]
    fn a_large_target_counts_until_the_window_has_passed_since_it_was_last_wanted() {
        let mut window = Window::new(Duration::from_secs(120));
        window.observe(48, at(0));
        // There was no observation for 300 s, during which 48 was still the target.
        assert_eq!(window.observe(16, at(300)), 48);
        assert_eq!(window.wake(), Some(at(420)));
        assert_eq!(window.observe(16, at(419)), 48);
        assert_eq!(window.observe(16, at(420)), 16);
        assert_eq!(window.wake(), None);
    }

    #[test]
    fn steps_down_are_taken_one_after_the_other() {
        let mut window = Window::new(Duration::from_secs(10));
        window.observe(48, at(0));
        window.observe(32, at(1));
        window.observe(16, at(5));
        assert_eq!(window.observe(16, at(10)), 48);
        assert_eq!(window.observe(16, at(11)), 32);
        assert_eq!(window.observe(16, at(15)), 16);
    }

    #[test]
    fn a_window_of_no_length_follows_at_once() {
        let mut window = Window::new(Duration::ZERO);
        window.observe(48, at(0));
        assert_eq!(window.observe(16, at(0)), 16);
    }
}
