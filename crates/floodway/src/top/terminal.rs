//! The terminal, which is as it was when this is dropped and after a panic.

use std::io;
use std::time::Instant;

use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;

/// A terminal in raw mode, on its alternate screen.
pub struct Terminal {
    terminal: DefaultTerminal,
    /// When the switch last answered.
    pub answered: Option<Instant>,
}

impl Terminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// Standard output is none, or refuses.
    pub fn open() -> io::Result<Self> {
        // This also restores it on a panic, before the message is printed.
        let terminal = ratatui::try_init()?;
        Ok(Self { terminal, answered: None })
    }

    /// Draws a picture.
    ///
    /// # Errors
    /// The terminal takes no more.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame.buffer_mut()))?;
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
