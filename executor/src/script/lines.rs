//! What a process writes, as log lines while it writes them.
//!
//! *Invariant: a process is never held up by its log, and never fills memory or the log*: a line and
//! the whole have limits, past which a marker stands, and what is read beyond is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};

use taskparty_common::dispatch::MAX_OUTPUT;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::context::Context;
use crate::logs::Level;

/// The longest line, in bytes. Lines that come together leave together, in texts of this size.
const MAX_LINE: usize = 8 * 1024;

/// What stands at the end of a line that was cut.
const CUT: &str = "… (cut)";

/// The bytes of one attempt's log.
const MAX_LOG: usize = 4 << 20;

/// The end of what was written that is kept for the result: a little more than fits, so that it is
/// known not to fit.
const MAX_TAIL: usize = MAX_OUTPUT + 1024;

/// How much the log of an attempt may still take, stdout and stderr together.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { left: AtomicUsize::new(MAX_LOG) }
    }

    fn take(&self, bytes: usize) -> Room {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left > 0).then(|| left.saturating_sub(bytes))
        });
        match taken {
            Ok(left) if left > bytes => Room::Is,
            Ok(_) => Room::Last,
            Err(_) => Room::None,
        }
    }
}

/// Whether a text still gets into the log.
enum Room {
    Is,
    /// For this one, and for no other.
    Last,
    None,
}

/// The end of what was written.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    /// Whether something that came before was dropped.
    cut: bool,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > 2 * MAX_TAIL {
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        let excess = self.bytes.len().saturating_sub(MAX_TAIL);
        self.bytes.drain(..excess);
        self.cut |= excess > 0;
    }

    /// All that was written, if it was kept whole.
    pub(super) fn whole(&mut self) -> Option<String> {
        self.shorten();
        (!self.cut).then(|| String::from_utf8_lossy(&self.bytes).trim().to_owned())
    }

    /// The last line that is not blank; of a line that is longer than what is kept, the end.
    pub(super) fn last_line(&mut self) -> String {
        self.shorten();
        let text = String::from_utf8_lossy(&self.bytes);
        let text = text.trim_end();
        text.rsplit('\n').next().unwrap_or_default().trim().to_owned()
    }

    /// The last lines that fit into `limit` bytes.
    pub(super) fn end(&mut self, limit: usize) -> String {
        self.shorten();
        let text = String::from_utf8_lossy(&self.bytes);
        let text = text.trim_end();
        if text.len() <= limit && !self.cut {
            return text.trim_start_matches('\n').to_owned();
        }
        let end = &text[text.ceil_char_boundary(text.len().saturating_sub(limit))..];
        // Begin at a line, where there is one.
        let end = end.split_once('\n').map_or(end, |(_, lines)| lines);
        format!("…\n{end}")
    }
}

/// Where lines go: the run's log. A trait for tests.
pub(super) trait Sink {
    fn line(&self, level: Level, text: String);
}

impl Sink for Context {
    fn line(&self, level: Level, text: String) {
        self.log(level, text);
    }
}

/// Turns bytes into log lines.
pub(super) struct Lines<'a, S> {
    sink: &'a S,
    level: Level,
    budget: &'a Budget,
    /// The line that has not ended.
    open: Vec<u8>,
    /// Whole lines that have not left.
    ready: String,
}

impl<'a, S: Sink> Lines<'a, S> {
    pub(super) fn new(sink: &'a S, level: Level, budget: &'a Budget) -> Self {
        Self { sink, level, budget, open: Vec::new(), ready: String::new() }
    }

    /// Reads `from` to its end. An error is an end: the process is what matters.
    pub(super) async fn read(mut self, mut from: impl AsyncRead + Unpin, tail: &mut Tail) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count) = from.read(&mut buffer).await {
            if count == 0 {
                break;
            }
            tail.push(&buffer[..count]);
            self.push(&buffer[..count]);
        }
        if !self.open.is_empty() {
            self.close();
        }
        self.flush();
    }

    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (piece, ends) = match piece.strip_suffix(b"\n") {
                Some(piece) => (piece, true),
                None => (piece, false),
            };
            // One byte more than fits says that there was more.
            let room = (MAX_LINE + 1).saturating_sub(self.open.len());
            self.open.extend_from_slice(&piece[..piece.len().min(room)]);
            if ends {
                self.close();
            }
        }
        self.flush();
    }

    /// The open line has ended.
    fn close(&mut self) {
        let bytes = self.open.strip_suffix(b"\r").unwrap_or(&self.open);
        let mut line = String::from_utf8_lossy(bytes).into_owned();
        if line.len() > MAX_LINE {
            line.truncate(line.floor_char_boundary(MAX_LINE - CUT.len()));
            line.push_str(CUT);
        }
        self.open.clear();
        if self.ready.len() + 1 + line.len() > MAX_LINE {
            self.flush();
        }
        if !self.ready.is_empty() {
            self.ready.push('\n');
        }
        self.ready.push_str(&line);
        // An empty line that stands alone would be no text at all.
        if self.ready.is_empty() {
            self.ready.push(' ');
        }
    }

    fn flush(&mut self) {
        let text = std::mem::take(&mut self.ready);
        if text.is_empty() {
            return;
        }
        let room = self.budget.take(text.len());
        if !matches!(room, Room::None) {
            self.sink.line(self.level, text);
        }
        if matches!(room, Room::Last) {
            let text = format!(
                "the log of this attempt is full at {} MiB: what follows is left out",
                MAX_LOG >> 20
            );
            self.sink.line(Level::Warn, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Page(Mutex<Vec<(Level, String)>>);

    impl Sink for Page {
        fn line(&self, level: Level, text: String) {
            assert!(text.len() <= MAX_LINE);
            self.0.lock().unwrap().push((level, text));
        }
    }

    async fn read(written: &[u8]) -> (Vec<(Level, String)>, Tail) {
        let (page, budget, mut tail) = (Page::default(), Budget::new(), Tail::default());
        Lines::new(&page, Level::Info, &budget).read(written, &mut tail).await;
        (page.0.into_inner().unwrap(), tail)
    }

    #[tokio::test]
    async fn lines_are_whole_and_in_order_and_the_last_needs_no_end() {
        let (lines, mut tail) = read("a\r\n\nécole 😀\n".as_bytes()).await;
        assert_eq!(lines, [(Level::Info, "a\n\nécole 😀".to_owned())]);
        assert_eq!(tail.last_line(), "école 😀");
        let (lines, _) = read(b"bad \xff\nend").await;
        assert_eq!(
            lines.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(),
            ["bad \u{fffd}", "end"]
        );
    }

    #[tokio::test]
    async fn a_long_line_is_cut_and_marked() {
        let (lines, mut tail) = read(format!("{}\nnext\n", "é".repeat(1_000_000)).as_bytes()).await;
        let text: String = lines.into_iter().map(|(_, text)| text + "\n").collect();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with("éé") && lines[0].ends_with(CUT) && lines[0].len() > MAX_LINE - 16
        );
        assert_eq!((lines[1], tail.last_line().as_str()), ("next", "next"));
        assert!(tail.whole().is_none());
    }

    #[tokio::test]
    async fn a_full_log_says_so_once() {
        let (lines, mut tail) = read("0123456789\n".repeat(1_000_000).as_bytes()).await;
        let bytes: usize = lines.iter().map(|(_, text)| text.len()).sum();
        assert!((MAX_LOG..MAX_LOG + 2 * MAX_LINE).contains(&bytes), "{bytes}");
        let full: Vec<_> = lines.iter().filter(|(level, _)| *level == Level::Warn).collect();
        assert_eq!(full.len(), 1);
        assert!(lines.last().unwrap().1.contains("is full at 4 MiB"));
        assert_eq!(tail.end(25), "…\n0123456789\n0123456789");
    }
}
