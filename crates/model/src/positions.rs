//! Rotary positions of a sequence: three axes (time, row, column) for every token.
//!
//! Takes the token ids of one sequence and the patch grids of its images in order, and gives one position for
//! each axis of each token. Text moves all axes together, an image spreads over rows and columns from where
//! the text stopped, and text goes on after the longer side.

/// Patches of one image or film: frames, rows, columns.
pub type Grid = [usize; 3];

/// Positions of a sequence that do not fit its images.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PositionError {
    /// The tokens and the grids do not tell of the same number of patches.
    #[error(
        "image {index}: {found} image tokens in a row, but its grid {grid:?} needs {needed}; \
         the tokens and the images of this sequence do not belong together"
    )]
    TokensDiffer {
        /// Which image of the sequence, from 0.
        index: usize,
        /// Its grid in patches.
        grid: Grid,
        /// Tokens the grid needs.
        needed: usize,
        /// Tokens that are there.
        found: usize,
    },
    /// The sequence's text has an image more or less than there are grids.
    #[error("the text has image tokens for {found} images, but {given} images are given")]
    ImagesDiffer {
        /// Images the text has tokens for.
        found: usize,
        /// Images given.
        given: usize,
    },
    /// A grid that the merge size does not divide, or an empty one.
    #[error("image {index}: grid {grid:?} is not a multiple of the merge size {merge}")]
    BadGrid {
        /// Which image of the sequence, from 0.
        index: usize,
        /// Its grid in patches.
        grid: Grid,
        /// Side of a merged token in patches.
        merge: usize,
    },
}

/// Positions of one sequence, axis by axis: `[time, row, column]` of each token.
pub fn mrope_positions(
    tokens: &[u32],
    grids: &[Grid],
    image_token: u32,
    merge: usize,
) -> Result<Vec<[u32; 3]>, PositionError> {
    let mut positions = Vec::with_capacity(tokens.len());
    let mut next = 0u32;
    let mut images = grids.iter().enumerate();
    let mut rest = tokens;
    while let Some(&token) = rest.first() {
        if token != image_token {
            positions.push([next; 3]);
            next += 1;
            rest = &rest[1..];
            continue;
        }
        let run = rest.iter().take_while(|&&token| token == image_token).count();
        let Some((index, &grid)) = images.next() else {
            let found = grids.len() + 1;
            return Err(PositionError::ImagesDiffer { found, given: grids.len() });
        };
        let merged = merged_grid(index, grid, merge)?;
        let needed = merged.iter().fold(1usize, |needed, side| needed.saturating_mul(*side));
        // Adjacent images have a start and an end token between them, so a run is exactly one image.
        if run != needed {
            return Err(PositionError::TokensDiffer { index, grid, needed, found: run });
        }
        push_image(&mut positions, next, merged);
        next += merged[1].max(merged[2]) as u32;
        rest = &rest[run..];
    }
    match images.next() {
        None => Ok(positions),
        Some((found, _)) => Err(PositionError::ImagesDiffer { found, given: grids.len() }),
    }
}

fn merged_grid(index: usize, grid: Grid, merge: usize) -> Result<Grid, PositionError> {
    let [frames, rows, columns] = grid;
    let divides = |side: usize| side > 0 && side.is_multiple_of(merge);
    if frames == 0 || !divides(rows) || !divides(columns) {
        return Err(PositionError::BadGrid { index, grid, merge });
    }
    Ok([frames, rows / merge, columns / merge])
}

fn push_image(positions: &mut Vec<[u32; 3]>, start: u32, [frames, rows, columns]: Grid) {
    for frame in 0..frames as u32 {
        for row in 0..rows as u32 {
            for column in 0..columns as u32 {
                positions.push([start + frame, start + row, start + column]);
            }
        }
    }
}
