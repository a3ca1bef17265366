//! How a watch, or a supervised run, shows what happens.
//!
//! The caller implements [`Observer`]; `watch` and `supervise` call it from one thread.

use crate::{event::Event, record::Reading, signals::stop_here, who::WhoReport};

/// Is shown each reading and each event.
pub trait Observer {
    /// The tree at this moment.
    fn reading(&mut self, reading: &Reading);
    /// Something happened.
    fn event(&mut self, event: &Event);
    /// What the command's Python processes said of who holds their memory, if they were to be asked; comes last.
    fn holders(&mut self, _: &WhoReport) {}
    /// The screen must be drawn again.
    fn redraw(&mut self) {}
    /// This process is about to be stopped: the terminal goes back to the shell.
    fn suspend(&mut self) {}
    /// This process continues.
    fn resume(&mut self) {}
}

/// Stops this process as Ctrl-Z does, until it is continued; the observer gives the terminal back meanwhile.
pub(crate) fn stop_with(observer: &mut dyn Observer) {
    observer.suspend();
    stop_here();
    observer.resume();
}
