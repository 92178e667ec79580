//! What executors wrote down: each start of a handler, of which job, when it was due and how late it
//! was.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use taskparty_common::name::JobId;
use tokio::time::{Instant, sleep};

/// How long the first start may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often the files are looked at for it.
const LOOK: Duration = Duration::from_millis(250);

/// A start of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    /// The nominal instant, in milliseconds since 1970.
    pub(crate) due_ms: i64,
    /// How much later the handler began, in microseconds.
    pub(crate) late_us: i64,
    /// Which job's it is: the number at the end of the job's id.
    pub(crate) job: u32,
}

impl Start {
    /// When the handler began, in microseconds since 1970.
    pub(crate) fn at_us(&self) -> i64 {
        self.due_ms * 1000 + self.late_us
    }

    /// As a line of a file.
    pub(crate) fn line(self) -> String {
        format!("{} {} {}\n", self.due_ms, self.late_us, self.job)
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            due_ms: words.next()?.parse().ok()?,
            late_us: words.next()?.parse().ok()?,
            job: words.next()?.parse().ok()?,
        })
    }
}

/// The number at the end of the id of a job that is measured; `u32::MAX` when there is none.
pub(crate) fn number_of(job: &JobId) -> u32 {
    let number = job.as_str().rsplit_once('-').and_then(|(_, number)| number.parse().ok());
    number.unwrap_or(u32::MAX)
}

/// Follows the files of executors.
#[derive(Debug)]
pub(crate) struct Follow {
    files: Vec<(PathBuf, u64)>,
}

impl Follow {
    pub(crate) fn new(files: &[PathBuf]) -> Self {
        Self { files: files.iter().map(|file| (file.clone(), 0)).collect() }
    }

    /// Waits for the first start that is written since the last call.
    ///
    /// # Errors
    /// When there is none for [`PATIENCE`].
    pub(crate) async fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.more()?.is_empty() {
            ensure!(begun.elapsed() < PATIENCE, "no handler started");
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// The starts that were written since the last call.
    pub(crate) fn more(&mut self) -> Result<Vec<Start>> {
        let mut starts = Vec::new();
        for (path, read) in &mut self.files {
            let said = || path.display().to_string();
            let mut file = File::open(&*path).with_context(said)?;
            file.seek(SeekFrom::Start(*read))?;
            let mut text = String::new();
            file.read_to_string(&mut text).with_context(said)?;
            // What is behind the last line's end is still being written.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            starts.extend(text[..whole].lines().filter_map(Start::read));
            *read += whole as u64;
        }
        Ok(starts)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_is_followed_line_by_whole_line() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut follow = Follow::new(&[file.path().to_owned()]);
        let one = Start { due_ms: 1, late_us: 20, job: 7 };
        let two = Start { due_ms: 3, late_us: -4, job: 0 };
        write!(file, "{}{}", one.line(), &two.line()[..2]).unwrap();
        assert_eq!(follow.more().unwrap(), [one]);
        write!(file, "{}", &two.line()[2..]).unwrap();
        assert_eq!(follow.more().unwrap(), [two]);
        assert_eq!(follow.more().unwrap(), []);
    }
}
