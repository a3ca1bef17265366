//! `println!` and its like for a reader that may have gone.
//!
//! The standard macros panic when standard output is a closed pipe (`| head`) or a full disk. A command's
//! work counts more than its reader, so these go on. They replace the standard ones in this crate.

macro_rules! println {
    () => { println!("") };
    ($($words:tt)*) => {{
        let line = format_args!("{}\n", format_args!($($words)*));
        let _ = ::std::io::Write::write_fmt(&mut ::std::io::stdout(), line);
    }};
}

macro_rules! print {
    ($($words:tt)*) => {{
        let _ = ::std::io::Write::write_fmt(&mut ::std::io::stdout(), format_args!($($words)*));
    }};
}

macro_rules! eprintln {
    ($($words:tt)*) => {{
        let line = format_args!("{}\n", format_args!($($words)*));
        let _ = ::std::io::Write::write_fmt(&mut ::std::io::stderr(), line);
    }};
}
