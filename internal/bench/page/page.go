// Package page has the style of HTML reports and writes their files. A report is one file without external parts.
package page

import _ "embed"

// Style is the style sheet. It follows the reader's preference for light or dark colours.
//
//go:embed style.css
var Style string
