package markup

import (
	"bytes"
	"time"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

const (
	maxTime  = time.Second
	maxCells = 100_000 // of a table: each row gets as many cells as the widest one
)

// limit ends the parsing of a text that takes too long, with a panic: the parser cannot be cancelled otherwise. For
// some texts its time grows with the square of their length. It is a parser of blocks that never finds one, and a
// transformer of paragraphs.
type limit struct{ end time.Time }

// errTooMuch is the value of the panic.
type errTooMuch struct{}

func (l limit) check() {
	if time.Now().After(l.end) {
		panic(errTooMuch{})
	}
}

// Trigger implements parser.BlockParser.
func (l limit) Trigger() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

// Open implements parser.BlockParser.
func (l limit) Open(ast.Node, text.Reader, parser.Context) (ast.Node, parser.State) {
	l.check()
	return nil, parser.NoChildren
}

// Continue implements parser.BlockParser.
func (l limit) Continue(ast.Node, text.Reader, parser.Context) parser.State { return parser.Close }

// Close implements parser.BlockParser.
func (l limit) Close(ast.Node, text.Reader, parser.Context) {}

// CanInterruptParagraph implements parser.BlockParser.
func (l limit) CanInterruptParagraph() bool { return true }

// CanAcceptIndentedLine implements parser.BlockParser.
func (l limit) CanAcceptIndentedLine() bool { return true }

// Transform implements parser.ParagraphTransformer. It runs before that of tables.
func (l limit) Transform(n *ast.Paragraph, reader text.Reader, _ parser.Context) {
	l.check()
	lines, columns := n.Lines(), 0
	for i := range lines.Len() {
		line := lines.At(i)
		columns = max(columns, bytes.Count(line.Value(reader.Source()), []byte("|")))
	}
	if columns*lines.Len() > maxCells {
		panic(errTooMuch{})
	}
}

// inlineLimit is limit within paragraphs.
type inlineLimit struct{ limit }

// Trigger implements parser.InlineParser.
func (l inlineLimit) Trigger() []byte { return []byte("[]!*_~`<&") }

// Parse implements parser.InlineParser.
func (l inlineLimit) Parse(ast.Node, text.Reader, parser.Context) ast.Node {
	l.check()
	return nil
}

// limitedContext is limit within the definitions of references.
type limitedContext struct {
	parser.Context
	limit
}

// AddReference implements parser.Context.
func (c limitedContext) AddReference(r parser.Reference) {
	c.check()
	c.Context.AddReference(r)
}
