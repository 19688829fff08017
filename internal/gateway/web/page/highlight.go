package page

import (
	"cmp"
	"context"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/lexers"
)

const (
	maxPainted = 256 << 10   // bytes of a file that is highlighted
	paintTime  = time.Second // for the highlighting of one file
)

// maxHTML is the number of bytes of a file's HTML after which its text is left out.
const maxHTML = 8 << 20

// MaxLine is the maximum number of bytes shown of a line.
const MaxLine = 8 << 10

// Results of highlighting: whether a text has colours, or why not.
const (
	PaintOK    = "ok"
	PaintNone  = "none"
	PaintLarge = "large"
	PaintLate  = "late"
	PaintBusy  = "busy"
)

// IsUnfinished reports whether highlighting had too little time, which depends on the load.
func IsUnfinished(result string) bool { return result == PaintLate || result == PaintBusy }

// PaintRemark returns a remark about a file without colours; "" about one with colours.
func PaintRemark(result string) string {
	switch result {
	case PaintLarge, PaintLate:
		return "too much to highlight"
	case PaintBusy:
		return "not highlighted: the server is busy"
	}
	return ""
}

// Painter highlights files with the lexers of chroma. Their regular expressions backtrack, and some texts take very
// long. So time and the number of files at once are limited, and a file is shown without colours if a limit is reached.
// Chroma parses its lexers when the process starts, which takes 5 ms and 3 MB.
type Painter struct {
	seats   chan struct{}
	running sync.WaitGroup
}

func newPainter() *Painter {
	// the other processors are for Git clients
	return &Painter{seats: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// Language returns the programming language of a file by its name; "" if it is not known.
func Language(name string) string {
	lexer := lexerOf(name)
	if lexer == nil || slices.Contains(data, lexer.Config().Name) {
		return ""
	}
	return lexer.Config().Name
}

// lexerOf returns the lexer of a file, nil if there is none: that of lexers.Match, which takes milliseconds.
func lexerOf(name string) (best chroma.Lexer) {
	if path.Base(name) == "go.mod" {
		return nil // only its extension is AMPL's
	}
	index := lexerIndex()
	consider := func(some []chroma.Lexer) {
		for _, lexer := range some {
			if best == nil || priority(lexer) > priority(best) {
				best = lexer
			}
		}
	}
	for base := path.Base(name); ; {
		consider(index.plain[base])
		consider(index.plain["*"+path.Ext(base)])
		for pattern, some := range index.patterns {
			if ok, _ := path.Match(pattern, base); ok {
				consider(some)
			}
		}
		suffix := slices.IndexFunc(backups, func(suffix string) bool { return strings.HasSuffix(base, suffix) })
		if suffix < 0 || best != nil {
			return best
		}
		base = strings.TrimSuffix(base, backups[suffix])
	}
}

// backups are the ends of names that do not change the language, as of lexers.Match.
var backups = []string{"~", ".bak", ".old", ".orig", ".dpkg-dist", ".dpkg-old", ".ucf-dist", ".ucf-new", ".ucf-old",
	".rpmnew", ".rpmorig", ".rpmsave", ".in"}

// lexersByPattern has lexers by names or "*.EXTENSION", and by other patterns.
type lexersByPattern struct{ plain, patterns map[string][]chroma.Lexer }

var lexerIndex = sync.OnceValue(func() lexersByPattern {
	index := lexersByPattern{map[string][]chroma.Lexer{}, map[string][]chroma.Lexer{}}
	for _, lexer := range lexers.GlobalLexerRegistry.Lexers {
		for _, pattern := range lexer.Config().Filenames {
			to := index.plain
			extension := strings.TrimPrefix(pattern, "*")
			if strings.ContainsAny(extension, `*?[\`) || extension != pattern && path.Ext(extension) != extension {
				to = index.patterns
			}
			to[pattern] = append(to[pattern], lexer)
		}
	}
	return index
})

// priority returns the priority of a lexer among those for the same files.
func priority(lexer chroma.Lexer) float32 { return cmp.Or(lexer.Config().Priority, 1) }

// data are names of lexers for files that are not programs.
var data = []string{"plaintext", "markdown", "Markdown", "reStructuredText", "Org Mode", "JSON", "YAML", "TOML", "XML",
	"INI", "Diff", "CSV", "HTML", "CSS", "SCSS", "properties", "Protocol Buffer"}

// Run runs f as highlighting runs: with a limit of how many do at once. It reports whether a seat was free in time, and
// before the end of ctx.
func (p *Painter) Run(ctx context.Context, f func()) bool {
	ctx, cancel := context.WithTimeout(ctx, paintTime)
	defer cancel()
	select {
	case p.seats <- struct{}{}:
		defer func() { <-p.seats }()
		f()
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *Painter) wait() { p.running.Wait() }

// span is text of one class of the style sheet; "" is plain text.
type span struct{ class, text string }

// spans splits a file's text into spans and returns its language, if known, and the result: PaintOK and so on. Without
// highlighting the whole text is one span.
func (p *Painter) spans(ctx context.Context, name, text string) (spans []span, language, result string) {
	spans = []span{{text: text}}
	lexer := lexerOf(name)
	if lexer != nil {
		language = lexer.Config().Name
	}
	switch {
	case language == "" || language == "plaintext":
		language, result = "", PaintNone
	case len(text) > maxPainted:
		result = PaintLarge
	default:
		spans, result = p.paint(ctx, lexer, text)
	}
	return spans, language, result
}

// paint runs a lexer. It waits for a seat and for the lexer for at most paintTime.
func (p *Painter) paint(ctx context.Context, lexer chroma.Lexer, text string) (spans []span, result string) {
	plain := []span{{text: text}}
	ctx, cancel := context.WithTimeout(ctx, paintTime)
	defer cancel()
	select {
	case p.seats <- struct{}{}:
	case <-ctx.Done():
		return plain, PaintBusy
	}
	begin := time.Now()
	done := make(chan []span, 1)
	p.running.Go(func() {
		defer func() { <-p.seats }()
		done <- tokens(lexer, text, begin.Add(paintTime))
	})
	select {
	case spans = <-done:
	case <-ctx.Done():
	}
	switch {
	case spans != nil:
		return spans, PaintOK
	case time.Since(begin) < paintTime && ctx.Err() == nil: // the lexer has failed
		return plain, PaintNone
	}
	return plain, PaintLate
}

// tokens runs a lexer over a text. It returns nil if the lexer fails, is late, or changes the text.
func tokens(lexer chroma.Lexer, text string, end time.Time) (spans []span) {
	defer func() {
		if recover() != nil { // a lexer has a bug: the file is shown without colours
			spans = nil
		}
	}()
	next, err := lexer.Tokenise(&chroma.TokeniseOptions{State: "root", EnsureLF: false}, text)
	if err != nil {
		return nil
	}
	spans = []span{}
	at := 0
	for token := next(); token != chroma.EOF; token = next() {
		if time.Now().After(end) {
			return nil
		}
		value := token.Value
		if at+len(value) > len(text) { // some lexers add a newline at the end
			value = value[:len(text)-at]
		}
		if text[at:at+len(value)] != value {
			return nil
		}
		at += len(value)
		class := classOf(token.Type)
		if n := len(spans); n > 0 && spans[n-1].class == class {
			spans[n-1].text = text[at-len(value)-len(spans[n-1].text) : at]
		} else if value != "" {
			spans = append(spans, span{class, value})
		}
	}
	if at != len(text) {
		return nil
	}
	return spans
}

// classOf returns the class of a kind of token in the style sheet.
func classOf(t chroma.TokenType) string {
	switch t {
	case chroma.KeywordType, chroma.NameClass, chroma.NameNamespace, chroma.NameException:
		return "t"
	case chroma.NameFunction, chroma.NameFunctionMagic, chroma.NameTag:
		return "f"
	case chroma.NameBuiltin, chroma.NameBuiltinPseudo, chroma.NameDecorator, chroma.NameAttribute, chroma.NameConstant,
		chroma.NameEntity, chroma.NameLabel:
		return "b"
	case chroma.CommentPreproc, chroma.CommentPreprocFile:
		return "b"
	case chroma.GenericDeleted, chroma.GenericError, chroma.Error:
		return "x"
	case chroma.GenericInserted:
		return "y"
	case chroma.GenericHeading, chroma.GenericSubheading:
		return "h"
	case chroma.GenericEmph:
		return "em"
	case chroma.GenericStrong:
		return "st"
	case chroma.OperatorWord:
		return "k"
	}
	switch {
	case t.InCategory(chroma.Comment):
		return "c"
	case t.InCategory(chroma.Keyword):
		return "k"
	case t.InSubCategory(chroma.LiteralString):
		return "s"
	case t.InSubCategory(chroma.LiteralNumber), t == chroma.LiteralDate:
		return "m"
	case t.InCategory(chroma.Operator):
		return "o"
	}
	return ""
}

// Lines splits a text into its lines, as HTML. The other results are those of spans.
func (p *Painter) Lines(ctx context.Context, name, text string) (lines []string, language, result string) {
	spans, language, result := p.spans(ctx, name, text)
	var l lineWriter
	for _, s := range spans {
		for text := s.text; text != ""; {
			i := strings.IndexByte(text, '\n')
			if i < 0 {
				l.write(s.class, text)
				break
			}
			l.write(s.class, strings.TrimSuffix(text[:i], "\r"))
			l.end()
			text = text[i+1:]
		}
	}
	if l.open {
		l.end()
	}
	return l.lines, language, result
}

// lineWriter writes the lines of a text as HTML.
type lineWriter struct {
	b     strings.Builder
	at    int // where the line begins in b
	lines []string
	open  bool // a line has begun
	bytes int  // of the line
}

func (l *lineWriter) write(class, text string) {
	if !l.open {
		l.open, l.bytes = true, 0
	}
	if l.bytes > MaxLine || text == "" {
		return
	}
	if l.b.Len() > maxHTML { // of characters that are shown as numbers
		l.bytes = MaxLine
	}
	text, cut := Shorten(text, MaxLine-l.bytes)
	if l.bytes += len(text); class != "" {
		l.b.WriteString(`<span class="` + class + `">`)
	}
	WriteText(&l.b, text)
	if class != "" {
		l.b.WriteString(`</span>`)
	}
	if cut {
		l.bytes = MaxLine + 1
		l.b.WriteString(`<b class="ctl">the rest of this line is not shown</b>`)
	}
}

func (l *lineWriter) end() {
	l.lines = append(l.lines, l.b.String()[l.at:])
	l.at, l.open = l.b.Len(), false
}
