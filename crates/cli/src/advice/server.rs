//! Advice about a server that did not start.

use super::Advice;
use garden_server::{DataDirError, ServeError, keys::KeysError};
use std::{error::Error, io::ErrorKind};

/// What the command line says about an error of garden-server.
pub fn advice(error: &(dyn Error + 'static)) -> Option<Advice> {
    let text = match error.downcast_ref::<ServeError>()? {
        ServeError::Keys(KeysError::Needed(_)) => {
            "add one with 'model-garden serve keys add NAME', or give a file of tokens with --token-file"
        }
        ServeError::DataDir(DataDirError::InUse { .. }) => {
            "end that server, or choose another folder with --data-dir"
        }
        ServeError::DataDir(DataDirError::NotOurs { .. }) => "choose it with --data-dir",
        ServeError::Bind { source, .. } if source.kind() == ErrorKind::AddrInUse => {
            "another program listens there: choose another port with --port"
        }
        ServeError::Bind { source, .. } if source.kind() == ErrorKind::AddrNotAvailable => {
            "this machine has no such address: choose another with --host"
        }
        ServeError::Bind { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            "ports below 1024 are the system's: choose another with --port"
        }
        _ => return None,
    };
    Some(Advice::Also(text.to_owned()))
}
