//! The batch script of a job: the keeper's command, with an environment of its own.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// The script's name in the job's folder.
pub(super) const NAME: &str = "slurm.sh";

/// A script that becomes the keeper, so that signals for the script reach the keeper. Nothing of the environment in
/// which Slurm starts it is left.
pub(super) fn write(
    environment: &[(OsString, OsString)],
    words: impl IntoIterator<Item = OsString>,
    output: &Path,
) -> Vec<u8> {
    let mut script = b"#!/bin/sh\nexec env -i".to_vec();
    for (name, value) in environment {
        let mut pair = name.clone();
        pair.push("=");
        pair.push(value);
        script.push(b' ');
        script.extend(quoted(&pair));
    }
    for word in words {
        script.push(b' ');
        script.extend(quoted(&word));
    }
    script.extend(b" >>");
    script.extend(quoted(output.as_os_str()));
    script.extend(b" 2>&1\n");
    script
}

/// A word that the shell takes as it is.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(br"'\''"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_script_runs_exactly_these_words_in_exactly_this_environment() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("it's a $(date) \"file\"\n");
        let environment =
            [("A".into(), "1 '; exit 3'".into()), ("PATH".into(), std::env::var_os("PATH").unwrap())];
        let words =
            ["sh", "-c", "echo \"$A|$SECRET|$0|$1\"", "it's", "two  words; $(exit)"].map(OsString::from);
        let script = folder.path().join(NAME);
        std::fs::write(&script, write(&environment, words, &output)).unwrap();
        let status = Command::new("sh").arg(&script).env("SECRET", "x").status().unwrap();
        assert!(status.success());
        assert_eq!(std::fs::read_to_string(output).unwrap(), "1 '; exit 3'||it's|two  words; $(exit)\n");
    }
}
