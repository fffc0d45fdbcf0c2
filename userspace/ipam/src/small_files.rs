//! Reads small text files of other software, with a size limit: a configured path may name a file
//! of any length, or one without an end such as `/dev/zero`.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

/// Maximum file size in bytes: more than the longest CNI result that a runtime caches, and little
/// memory.
pub const MAX_BYTES: u64 = 4 << 20;

/// Reads a UTF-8 file of at most [`MAX_BYTES`] bytes; a longer one is [`ErrorKind::FileTooLarge`].
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        let why = format!("it has more than {MAX_BYTES} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// Reads the regular files of a directory: names and contents, in any order. Files that cannot be
/// read are left out, and so are those that `is_wanted` rejects by name. A directory that does not
/// exist has none.
pub fn read_directory(
    directory: impl AsRef<Path>,
    is_wanted: impl Fn(&str) -> bool,
) -> io::Result<Vec<(String, String)>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| is_wanted(name)) else {
            continue;
        };
        // A FIFO would block.
        if path.metadata().is_ok_and(|metadata| metadata.is_file())
            && let Ok(text) = read(&path)
        {
            files.push((name.to_owned(), text));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_above_the_size_limit_is_refused() {
        assert_eq!(
            read("/dev/zero").unwrap_err().kind(),
            ErrorKind::FileTooLarge
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let most = usize::try_from(MAX_BYTES).unwrap();
        for (length, fits) in [(0, true), (most, true), (most + 1, false)] {
            std::fs::write(&path, "a".repeat(length)).unwrap();
            let read = read(&path);
            assert_eq!(
                read.is_ok_and(|text| text.len() == length),
                fits,
                "{length}"
            );
        }
        assert_eq!(
            read(folder.path().join("b")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn only_wanted_regular_files_of_a_directory_are_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.conf"), "a").unwrap();
        std::fs::write(folder.path().join("b.txt"), "b").unwrap();
        std::fs::create_dir(folder.path().join("c.conf")).unwrap();
        let files =
            read_directory(folder.path(), |name| name == "a.conf" || name == "c.conf").unwrap();
        assert_eq!(files, [("a.conf".to_owned(), "a".to_owned())]);
        let none = read_directory(folder.path().join("d"), |_| true).unwrap();
        assert!(none.is_empty());
    }
}
