//! Finding a job's file in the operator's folder.
//!
//! *Invariant: what is run is a regular file inside the folder*, after every symbolic link has been
//! followed. Links inside the folder are fine: mounted configuration is often made of them.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// Where `file` of `folder` really is. Blocks. The error is for whoever wrote the job, and says
/// nothing of what is outside the folder.
pub(super) fn find(folder: &Path, file: &str) -> Result<PathBuf, String> {
    let inside = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if file.is_empty() || file.contains('\0') || !inside {
        return Err(format!(
            "file: {file:?} must be a path inside the executor's folder, without `..`"
        ));
    }
    let gone = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => format!("file: the executor's folder has no {file:?}"),
        _ => format!("file: {file:?} cannot be reached: {}", error.kind()),
    };
    // The folder may be a link that is turned to a new version while we run.
    let folder = folder.canonicalize().map_err(gone)?;
    let found = folder.join(file).canonicalize().map_err(gone)?;
    if !found.starts_with(&folder) {
        return Err(format!("file: {file:?} leads out of the executor's folder"));
    }
    if !found.metadata().map_err(gone)?.is_file() {
        return Err(format!("file: {file:?} is no regular file"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_a_regular_file_inside_the_folder_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("scripts");
        std::fs::create_dir_all(folder.join("v1/deep")).unwrap();
        std::fs::write(folder.join("v1/deep/a.sh"), "").unwrap();
        std::fs::write(dir.path().join("outside.sh"), "").unwrap();
        symlink("v1", folder.join("current")).unwrap();
        symlink("../outside.sh", folder.join("out.sh")).unwrap();
        symlink("/", folder.join("root")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe"), 0o600.into()).unwrap();
        let real = folder.canonicalize().unwrap().join("v1/deep/a.sh");
        assert_eq!(find(&folder, "v1/deep/a.sh").unwrap(), real);
        assert_eq!(find(&folder, "current/deep/a.sh").unwrap(), real);
        let absolute = real.display().to_string();
        for (file, why) in [
            ("", "inside"),
            ("..", "inside"),
            ("../outside.sh", "inside"),
            ("v1/../v1/deep/a.sh", "inside"),
            (absolute.as_str(), "inside"),
            ("./v1/deep/a.sh", "inside"),
            ("a\0b", "inside"),
            ("none.sh", "has no"),
            ("out.sh", "leads out"),
            ("root/etc/passwd", "leads out"),
            ("v1/deep", "no regular file"),
            ("pipe", "no regular file"),
        ] {
            let error = find(&folder, file).unwrap_err();
            assert!(error.contains(why), "{file:?}: {error}");
        }
        symlink(&folder, dir.path().join("link")).unwrap();
        assert_eq!(find(&dir.path().join("link"), "v1/deep/a.sh").unwrap(), real);
    }
}
