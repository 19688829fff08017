package markup

import (
	"bytes"
	"context"
	"time"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

const (
	maxTime  = time.Second
	maxCells = 100_000 // of a table: each row gets as many cells as the widest one
	maxMarks = 10_000  // special characters of a paragraph: emphasis takes time with the square of their number
	maxHTML  = 2 << 20 // bytes
)

// limit ends the rendering of a text that takes too long, or whose client has gone, with a panic: the parser cannot be
// cancelled otherwise. For some texts its time grows with the square of their length. It is a parser of blocks that
// never finds one, and a transformer of paragraphs.
type limit struct{ ctx context.Context }

// errTooMuch is the value of the panic.
type errTooMuch struct{}

func (l limit) check() {
	if l.ctx.Err() != nil {
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
type inlineLimit struct {
	limit
	paragraph ast.Node
	marks     int // in the paragraph
}

// Trigger implements parser.InlineParser.
func (l *inlineLimit) Trigger() []byte { return []byte("[]!*_~`<&") }

// Parse implements parser.InlineParser.
func (l *inlineLimit) Parse(paragraph ast.Node, _ text.Reader, _ parser.Context) ast.Node {
	l.check()
	if paragraph != l.paragraph {
		l.paragraph, l.marks = paragraph, 0
	}
	if l.marks++; l.marks > maxMarks {
		panic(errTooMuch{})
	}
	return nil
}

// limitedHTML is HTML within limit.
type limitedHTML struct {
	limit
	data bytes.Buffer
}

// Write implements io.Writer.
func (h *limitedHTML) Write(p []byte) (int, error) {
	h.check()
	if h.data.Len()+len(p) > maxHTML {
		panic(errTooMuch{})
	}
	return h.data.Write(p)
}

// Read implements io.Reader.
func (h *limitedHTML) Read(p []byte) (int, error) {
	h.check()
	return h.data.Read(p)
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
