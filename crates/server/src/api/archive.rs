//! Files as one tar archive, read as fast as the client takes them.
//!
//! Takes files and gives their archive in pieces, with its length known before the first. No thread waits for the
//! client: a piece is read when there is room for it, and a client that takes none for a while is given up.

use axum::body::{Body, Bytes};
use futures_util::Stream;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{fs::File, io::AsyncReadExt, sync::mpsc, time};
use tokio_stream::wrappers::ReceiverStream;

/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;
/// Pieces that wait for the client.
const AHEAD: usize = 2;
/// Files of an archive are padded to this.
const BLOCK: u64 = 512;
/// Zeros at an archive's end.
const END: usize = 1024;

/// An archive whose files were looked at and not yet read.
#[derive(Debug)]
pub(super) struct Archive {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    path: PathBuf,
    header: Vec<u8>,
    bytes: u64,
}

impl Archive {
    /// An archive of files, which lie in one folder there. Blocks.
    pub(super) fn of(files: &[PathBuf], folder: &str) -> io::Result<Self> {
        let member = |path: &PathBuf| {
            let data = fs::metadata(path)?;
            let mut header = tar::Header::new_gnu();
            header.set_metadata(&data);
            let name = Path::new(folder).join(path.file_name().unwrap_or_default());
            // The builder splits long names; without contents it writes nothing but headers.
            let mut builder = tar::Builder::new(Vec::new());
            builder.append_data(&mut header, name, io::empty())?;
            Ok(Member { path: path.clone(), header: builder.get_ref().clone(), bytes: data.len() })
        };
        Ok(Self { members: files.iter().map(member).collect::<io::Result<_>>()? })
    }

    /// Bytes of the whole archive.
    pub(super) fn bytes(&self) -> u64 {
        let member = |member: &Member| member.header.len() as u64 + member.bytes.next_multiple_of(BLOCK);
        self.members.iter().map(member).sum::<u64>() + END as u64
    }

    /// The archive as a body, which breaks off when the client takes nothing for `patience`, and when `until` ends.
    /// `place` is held as long as files are read.
    pub(super) fn body(
        self,
        patience: Duration,
        until: impl Future<Output = ()> + Send + 'static,
        place: impl Send + 'static,
    ) -> Body {
        Body::from_stream(self.pieces(patience, until, place))
    }

    fn pieces(
        self,
        patience: Duration,
        until: impl Future<Output = ()> + Send + 'static,
        place: impl Send + 'static,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let (pieces, taken) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let read = async {
                if let Err(error) = self.read(&pieces, patience).await {
                    // A file that cannot be read breaks the line; a client that does not read is told nothing.
                    let _ = pieces.try_send(Err(error));
                }
            };
            tokio::select! { () = read => {} () = until => {} }
            drop(place);
        });
        ReceiverStream::new(taken)
    }

    async fn read(self, pieces: &mpsc::Sender<io::Result<Bytes>>, patience: Duration) -> io::Result<()> {
        let give = async |piece: Vec<u8>| {
            let given = time::timeout(patience, pieces.send(Ok(Bytes::from(piece)))).await;
            given.map_err(io::Error::from)?.map_err(|_| io::ErrorKind::BrokenPipe.into())
        };
        for Member { path, header, bytes } in self.members {
            give(header).await?;
            let mut file = File::open(&path).await?;
            let mut left = bytes;
            while left > 0 {
                let mut piece = Vec::with_capacity(PIECE);
                let most = left.min(PIECE as u64);
                while (piece.len() as u64) < most {
                    let mut rest = (&mut file).take(most - piece.len() as u64);
                    // What grew meanwhile is cut; what shrank cannot be made good.
                    if rest.read_buf(&mut piece).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                left -= most;
                give(piece).await?;
            }
            let padding = bytes.next_multiple_of(BLOCK) - bytes;
            give(vec![0; padding as usize]).await?;
        }
        give(vec![0; END]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use std::{future::pending, sync::Arc};

    fn files(folder: &Path, sizes: &[usize]) -> Vec<PathBuf> {
        let write = |(index, size): (usize, &usize)| {
            let path = folder.join(format!("file-{index}"));
            fs::write(&path, vec![index as u8 + 1; *size]).unwrap();
            path
        };
        sizes.iter().enumerate().map(write).collect()
    }

    #[tokio::test]
    async fn an_archive_has_the_length_that_was_told_and_unpacks() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), &[0, 1, 512, 700_001]);
        let name = "n".repeat(180);
        let archive = Archive::of(&files, &name).unwrap();
        let told = archive.bytes();
        let pieces = archive.pieces(Duration::from_secs(60), pending(), ());
        let bytes: Vec<u8> = pieces.map(|piece| piece.unwrap().to_vec()).concat().await;
        assert_eq!(bytes.len() as u64, told);
        let out = tempfile::tempdir().unwrap();
        tar::Archive::new(&bytes[..]).unpack(out.path()).unwrap();
        for file in files {
            let unpacked = out.path().join(&name).join(file.file_name().unwrap());
            assert_eq!(fs::read(unpacked).unwrap(), fs::read(file).unwrap());
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), &[4 * PIECE]);
        let place = Arc::new(());
        let archive = Archive::of(&files, "model").unwrap();
        let told = archive.bytes();
        let pieces = archive.pieces(Duration::from_millis(20), pending(), Arc::clone(&place));
        while Arc::strong_count(&place) > 1 {
            time::sleep(Duration::from_millis(5)).await;
        }
        let bytes: usize =
            pieces.map(|piece| piece.map_or(0, |piece| piece.len())).fold(0, async |a, b| a + b).await;
        assert!((bytes as u64) < told, "{bytes} of {told}");
    }
}
