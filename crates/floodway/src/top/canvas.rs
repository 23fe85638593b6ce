//! A part of the screen that is drawn on line by line.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::style::Look;

/// Where things are drawn, line by line.
pub struct Canvas<'a> {
    /// The screen.
    pub buffer: &'a mut Buffer,
    /// The part of it that is not drawn on yet.
    pub area: Rect,
    /// How.
    pub look: Look,
}

impl Canvas<'_> {
    /// Writes `text` at column `x` of the first line, cut at its end.
    pub fn put(&mut self, x: usize, text: &str, style: Style) {
        let width = usize::from(self.area.width);
        if x < width && self.area.height > 0 {
            let x_on_screen = self.area.x + x as u16;
            self.buffer.set_stringn(x_on_screen, self.area.y, text, width - x, style);
        }
    }

    /// Writes `text` at the right end of the first line, if `used` characters on its left leave room.
    pub fn put_right(&mut self, used: usize, text: &str, style: Style) {
        let (width, length) = (usize::from(self.area.width), text.chars().count());
        if used + 1 + length <= width {
            self.put(width - length, text, style);
        }
    }

    /// Goes on with the next line.
    pub fn next_line(&mut self) {
        let lines = self.area.height.min(1);
        self.area.y += lines;
        self.area.height -= lines;
    }

    /// Writes a line and goes on with the next.
    pub fn line(&mut self, text: &str, style: Style) {
        self.put(0, text, style);
        self.next_line();
    }

    /// Sets the style of the whole first line.
    pub fn paint(&mut self, style: Style) {
        let line = Rect { height: self.area.height.min(1), ..self.area };
        self.buffer.set_style(line, style);
    }
}
