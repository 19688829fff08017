package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxColumns is the longest line, in characters; a tab counts as one.
const maxColumns = 120

// A line of text, with its number in the source.
type line struct {
	number int
	text   string
}

// A paragraph is text that belongs together, without empty lines.
type paragraph []line

// extractor returns the function that finds the prose of a file, nil if the file has none or is prose as a whole.
func extractor(name string) func(name string, text []byte) ([]paragraph, error) {
	switch path.Ext(name) {
	case ".go":
		return goProse
	case ".proto":
		return markedLines("//", "")
	case ".txtar":
		return markedLines("#", "-- ")
	}
	return nil
}

var generatedMark = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func isGenerated(name string, text []byte) bool {
	return strings.Contains(name, "testdata/") && !strings.HasSuffix(name, ".txtar") ||
		strings.HasSuffix(name, ".go") && generatedMark.Match(text)
}

// render writes paragraphs with empty lines between them. Each ends with a period, because vale looks for sentences
// across empty lines. It returns the text, and the source's line for each of its lines.
func render(paragraphs []paragraph) (text []byte, lines []int) {
	var b bytes.Buffer
	for _, p := range paragraphs {
		for i, l := range p {
			if i == len(p)-1 && !strings.HasSuffix(l.text, "?") {
				l.text = strings.TrimRight(l.text, ".:;, ") + "."
			}
			fmt.Fprintln(&b, hideDots(l.text))
			lines = append(lines, l.number)
		}
		fmt.Fprintln(&b)
		lines = append(lines, p[len(p)-1].number)
	}
	if len(lines) == 0 {
		return []byte("\n"), []int{1}
	}
	return b.Bytes(), lines
}

var innerDot = regexp.MustCompile(`(\w)\.(\w)`)

// hideDots replaces the dots within words, which vale takes for abbreviations that do not end a sentence.
func hideDots(text string) string {
	text = innerDot.ReplaceAllString(text, "${1}_${2}")
	return innerDot.ReplaceAllString(text, "${1}_${2}") // matches do not overlap: 1.2.3
}

// markedLines finds comments that begin with mark at the beginning of a line or after white space, up to a line that
// begins with end.
func markedLines(mark, end string) func(string, []byte) ([]paragraph, error) {
	return func(_ string, text []byte) ([]paragraph, error) {
		var found []paragraph
		var lines []line
		number := 0
		for s := range strings.Lines(string(text)) {
			number++
			if end != "" && strings.HasPrefix(s, end) {
				break
			}
			comment, ok := strings.CutPrefix(strings.TrimSpace(s), mark)
			if !ok {
				found = append(found, split(lines)...)
				lines = nil
				continue
			}
			lines = append(lines, line{number, strings.TrimPrefix(comment, " ")})
		}
		return append(found, split(lines)...), nil
	}
}

// goProse finds the comments of a Go file, and the texts in the strings of a Go file that is not a test.
func goProse(name string, text []byte) ([]paragraph, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var found []paragraph
	for _, group := range file.Comments {
		found = append(found, split(commentLines(files, group))...)
	}
	if !strings.HasSuffix(name, "_test.go") {
		found = append(found, stringProse(files, file)...)
	}
	slices.SortStableFunc(found, func(a, b paragraph) int { return cmp.Compare(a[0].number, b[0].number) })
	return found, nil
}

var directive = regexp.MustCompile(`^//[a-z0-9]+:[a-z0-9]`)

// commentLines returns the lines of a comment without its marks. Directives become empty lines.
func commentLines(files *token.FileSet, group *ast.CommentGroup) []line {
	var lines []line
	for _, c := range group.List {
		number := files.Position(c.Pos()).Line
		text := c.Text
		switch {
		case directive.MatchString(text):
			text = ""
		case strings.HasPrefix(text, "//"):
			text = strings.TrimPrefix(text[2:], " ")
		default:
			text = strings.TrimSuffix(text[2:], "*/")
		}
		for s := range strings.SplitSeq(text, "\n") {
			lines = append(lines, line{number, s})
			number++
		}
	}
	return lines
}

var listMark = regexp.MustCompile(`^\s+(?:[-*+•]|\d+[.)])\s+`)

// split makes paragraphs of the lines of a text. Indented lines are code, as in Go's doc comments, unless they are
// a list, whose items are paragraphs.
func split(lines []line) []paragraph {
	var found []paragraph
	var current paragraph
	flush := func() {
		if len(current) > 0 {
			found = append(found, current)
		}
		current = nil
	}
	inList := false
	for _, l := range lines {
		indented := strings.HasPrefix(l.text, "\t") || strings.HasPrefix(l.text, "  ")
		mark := listMark.FindString(l.text)
		text := strings.TrimSpace(l.text)
		switch {
		case text == "":
			flush()
			continue // a list may go on
		case mark != "":
			flush()
			inList = true
			text = strings.TrimSpace(l.text[len(mark):])
		case strings.HasPrefix(text, "# "):
			flush()
			text = text[2:]
		case !indented && inList:
			flush()
			inList = false
		case indented && !inList:
			flush()
			continue // code
		}
		current = append(current, line{l.number, text})
	}
	flush()
	return found
}

// stringProse finds the strings that people read: errors, log messages, help texts and the like.
func stringProse(files *token.FileSet, file *ast.File) []paragraph {
	var found []paragraph
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil // a tag is not a text
		case *ast.BinaryExpr:
			if lines, ok := concatenated(files, n); ok {
				found = append(found, textParagraphs(lines)...)
				return false
			}
		case *ast.BasicLit:
			if lines, ok := concatenated(files, n); ok {
				found = append(found, textParagraphs(lines)...)
			}
		}
		return true
	})
	return found
}

// concatenated returns the lines of a constant string, also of one that is written as a sum of others.
func concatenated(files *token.FileSet, e ast.Expr) ([]line, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return nil, false
		}
		text, err := strconv.Unquote(e.Value)
		if err != nil {
			return nil, false
		}
		number, raw := files.Position(e.Pos()).Line, strings.HasPrefix(e.Value, "`")
		var lines []line
		for s := range strings.SplitSeq(text, "\n") {
			lines = append(lines, line{number, s})
			if raw {
				number++
			}
		}
		return lines, true
	case *ast.BinaryExpr:
		left, ok := concatenated(files, e.X)
		right, ok2 := concatenated(files, e.Y)
		if e.Op != token.ADD || !ok || !ok2 {
			return nil, false
		}
		last := &left[len(left)-1]
		last.text += right[0].text
		return append(left, right[1:]...), true
	}
	return nil, false
}

var (
	markup = regexp.MustCompile(`</?[a-zA-Z][^>]*>|\{\{|^#!|\x00`)
	words  = regexp.MustCompile(`(?:^|[\s"'(])[A-Za-z][a-z]*(?: [A-Za-z]?[a-z]+[,;:.]?){2}`)
)

// textParagraphs returns the paragraphs of a string, none if it does not look like text.
func textParagraphs(lines []line) []paragraph {
	for _, l := range lines {
		if markup.MatchString(l.text) {
			return nil
		}
	}
	return slices.DeleteFunc(split(lines), func(p paragraph) bool {
		return !slices.ContainsFunc(p, func(l line) bool { return words.MatchString(l.text) })
	})
}

var (
	linkTarget = regexp.MustCompile(`\]\([^)\s]*\)|https?://\S+`)
	rawString  = regexp.MustCompile("`[^`]*`")
)

// wideLines finds the lines with more than maxColumns characters. In Go, raw strings may be longer, and in Markdown
// tables, blocks of code and lines that are only long by a link.
func wideLines(name string, text []byte) []finding {
	goFile, markdown := strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".md")
	if !goFile && !markdown {
		return nil
	}
	var found []finding
	number, inBlock := 0, false
	for s := range strings.Lines(string(text)) {
		number++
		s = strings.TrimRight(s, "\n")
		trimmed := strings.TrimSpace(s)
		exempt := false
		switch {
		case goFile:
			odd := strings.Count(s, "`")%2 == 1
			exempt = inBlock || odd || strings.HasPrefix(trimmed, "//go:")
			inBlock = inBlock != odd
			s = rawString.ReplaceAllString(s, "")
		case markdown:
			fence := strings.HasPrefix(trimmed, "```")
			exempt = inBlock || fence || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(s, "    ")
			inBlock = inBlock != fence
		}
		if columns := utf8.RuneCountInString(linkTarget.ReplaceAllString(s, "")); columns > maxColumns && !exempt {
			found = append(found, finding{name, number, fmt.Sprintf("line of %d columns, more than %d", columns, maxColumns)})
		}
	}
	return found
}
