package web

import (
	"path"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/lexers"
)

const (
	maxPainted = 256 << 10   // bytes of a file that is highlighted
	paintTime  = time.Second // how long a page waits for that
	maxLine    = 8 << 10     // bytes of a line that are shown
)

// What became of a file's highlighting.
const (
	paintOK    = "ok"
	paintNone  = "none"
	paintLarge = "large"
	paintLate  = "late"
	paintBusy  = "busy"
)

// The lexers are read when a process of ours begins, whatever it is for: 5 ms and 3 MB. Their package does so where its
// variables are made, from files that are embedded in it and nowhere else, so without a copy of these there is no later
// moment for it.

// painter finds out what is what in a file's text. The regular expressions that it does so with go back and forth, and
// there are texts on which they do so for long: it works within limits, and text without colours is always to be had.
type painter struct {
	metrics *PageMetrics
	seats   chan struct{}
	running sync.WaitGroup
}

func newPainter(m *PageMetrics) *painter {
	// the rest is for those who fetch
	return &painter{metrics: m, seats: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

func (p *painter) wait() { p.running.Wait() }

// span is text of one class; "": no special one.
type span struct{ class, text string }

// spans cuts a file's text into spans, and tells what became of that: one span is what is left where it was not done.
// The language may be known all the same.
func (p *painter) spans(name, text string) (spans []span, language, result string) {
	spans = []span{{text: text}}
	lexer := lexers.Match(path.Base(name))
	if lexer != nil {
		language = lexer.Config().Name
	}
	switch {
	case language == "" || language == "plaintext":
		language, result = "", paintNone
	case len(text) > maxPainted:
		result = paintLarge
	default:
		spans, result = p.paint(lexer, text)
	}
	p.metrics.painted.WithLabelValues(result).Inc()
	return spans, language, result
}

// paint waits for a lexer, and for its turn, but not for long.
func (p *painter) paint(lexer chroma.Lexer, text string) (spans []span, result string) {
	plain := []span{{text: text}}
	late := time.NewTimer(paintTime)
	defer late.Stop()
	select {
	case p.seats <- struct{}{}:
	case <-late.C:
		return plain, paintBusy
	}
	begin := time.Now()
	done := make(chan []span, 1)
	p.running.Go(func() {
		defer func() { <-p.seats }()
		done <- tokens(lexer, text, begin.Add(paintTime))
	})
	select {
	case spans = <-done:
		p.metrics.seconds.Observe(time.Since(begin).Seconds())
	case <-late.C:
	}
	if spans == nil {
		return plain, paintLate
	}
	return spans, paintOK
}

// tokens runs a lexer over a text; nil: it did not come to its end in time, or to another text than it was given.
func tokens(lexer chroma.Lexer, text string, end time.Time) (spans []span) {
	defer func() {
		if recover() != nil { // a lexer with a bug in it is no reason to show nothing
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
		if at+len(value) > len(text) { // lexers may want a newline at the end
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

// classOf is the style sheet's name for a kind of token.
func classOf(t chroma.TokenType) string {
	switch t {
	case chroma.KeywordType, chroma.NameClass, chroma.NameNamespace, chroma.NameException:
		return "t"
	case chroma.NameFunction, chroma.NameFunctionMagic, chroma.NameTag:
		return "f"
	case chroma.NameBuiltin, chroma.NameBuiltinPseudo, chroma.NameDecorator, chroma.NameAttribute, chroma.NameConstant, chroma.NameEntity, chroma.NameLabel:
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

// writeCode writes text as numbered lines. It gives their number.
func writeCode(b *strings.Builder, spans []span) (lines int) {
	l := lineWriter{b: b}
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
	return l.lines
}

type lineWriter struct {
	b     *strings.Builder
	lines int
	open  bool // a line
	bytes int  // of it
}

func (l *lineWriter) begin() {
	if !l.open {
		l.open, l.bytes = true, 0
		l.lines++
		writeLineStart(l.b, l.lines)
	}
}

func (l *lineWriter) write(class, text string) {
	l.begin()
	if l.bytes > maxLine || text == "" {
		return
	}
	text, cut := shorten(text, maxLine-l.bytes)
	if l.bytes += len(text); class != "" {
		l.b.WriteString(`<span class="` + class + `">`)
	}
	writeText(l.b, text)
	if class != "" {
		l.b.WriteString(`</span>`)
	}
	if cut {
		l.bytes = maxLine + 1
		l.b.WriteString(`<b class="ctl">the rest of this line is not shown</b>`)
	}
}

func (l *lineWriter) end() {
	l.begin()
	l.b.WriteString("</code></p>\n")
	l.open = false
}
