package worker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sourcegraph/zoekt"
)

const (
	// ctagsTime is the time limit of ctags for one file.
	ctagsTime = 5 * time.Second
	// ctagsSize is the maximum size of a file for ctags in bytes, and ctagsSymbols the maximum number of its symbols.
	ctagsSize    = 512 << 10
	ctagsSymbols = 20_000
	// ctagsFailures is the number of failures after which the job continues without symbols.
	ctagsFailures = 20
)

// symbols finds the symbols of files with universal-ctags. ctags parses untrusted files, so it runs in its own sandbox.
// zoekt's driver is not used, because it names languages that Debian's ctags does not know.
type symbols struct {
	program string
	mode    string // of interaction
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	failed  int
}

// dataFormats are extensions of files whose keys ctags takes for symbols. Such keys would rank above definitions with
// the same names.
var dataFormats = map[string]bool{
	".json": true, ".json5": true, ".jsonc": true, ".jsonl": true, ".ndjson": true, ".geojson": true,
	".webmanifest": true, ".har": true, ".ipynb": true,
	".yaml": true, ".yml": true, ".toml": true, ".ini": true, ".cfg": true, ".conf": true, ".properties": true,
	".xml": true, ".svg": true, ".plist": true, ".csv": true,
	".lock": true, ".po": true,
}

func newSymbols(program string) *symbols { return &symbols{program: program, mode: "sandbox"} }

// forJob returns the symbols for the next job. It reuses the ctags process of s, which may be nil, if the program is
// the same.
func (s *symbols) forJob(program string) *symbols {
	if s == nil || s.program != program {
		s.close()
		return newSymbols(program)
	}
	if s.failed > 0 {
		s.close()
		s.failed = 0
	}
	return s
}

// tag is a line of ctags.
type tag struct {
	Type  string `json:"_type"`
	Name  string `json:"name"`
	Line  int    `json:"line"`
	Kind  string `json:"kind"`
	Scope string `json:"scope"`
	In    string `json:"scopeKind"`
}

// add sets the symbols of a document. They are never nil afterwards, so that zoekt does not run ctags.
func (s *symbols) add(doc *zoekt.Document) {
	doc.Symbols = []zoekt.DocumentSection{}
	if s.program == "" || s.failed >= ctagsFailures || len(doc.Content) == 0 || len(doc.Content) > ctagsSize ||
		bytes.IndexByte(doc.Content, 0) >= 0 {
		return
	}
	if dataFormats[strings.ToLower(path.Ext(doc.Name))] {
		return
	}
	tags, err := s.tags(path.Base(doc.Name), doc.Content)
	if err != nil {
		s.close()
		if s.failed++; s.failed == 1 && s.mode == "sandbox" {
			s.mode, s.failed = "default", 0 // this ctags has no sandbox
			s.add(doc)
			return
		}
		log.Printf("ctags failed on a file of %d bytes: %v", len(doc.Content), err)
		return
	}
	doc.Symbols, doc.SymbolsMetaData = sections(doc.Content, tags)
}

func (s *symbols) start() error {
	if s.cmd != nil {
		return nil
	}
	cmd := exec.Command(s.program, "--quiet", "--options=NONE", "--_interactive="+s.mode, "--fields=NnKs")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd, s.in, s.out = cmd, in, bufio.NewReaderSize(out, 64<<10)
	return nil
}

func (s *symbols) close() {
	if s != nil && s.cmd != nil {
		s.in.Close()
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *symbols) tags(name string, content []byte) ([]tag, error) {
	if err := s.start(); err != nil {
		return nil, err
	}
	cmd := s.cmd
	late := time.AfterFunc(ctagsTime, func() { cmd.Process.Kill() })
	defer late.Stop()
	ask, err := json.Marshal(map[string]any{"command": "generate-tags", "filename": name, "size": len(content)})
	if err != nil {
		return nil, err
	}
	if _, err := s.in.Write(append(ask, '\n')); err != nil {
		return nil, err
	}
	if _, err := s.in.Write(content); err != nil {
		return nil, err
	}
	var tags []tag
	for {
		line, err := s.out.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		var t tag
		if err := json.Unmarshal(line, &t); err != nil {
			return nil, fmt.Errorf("unexpected output: %w", err)
		}
		switch t.Type {
		case "completed":
			return tags, nil
		case "error":
			return nil, nil
		case "tag":
			if len(tags) < ctagsSymbols {
				tags = append(tags, t)
			}
		}
	}
}

// sections finds the symbols in a file: ctags reports only their lines. Sections are in order and do not overlap.
func sections(content []byte, tags []tag) ([]zoekt.DocumentSection, []*zoekt.Symbol) {
	slices.SortStableFunc(tags, func(a, b tag) int { return a.Line - b.Line })
	list, about := make([]zoekt.DocumentSection, 0, len(tags)), make([]*zoekt.Symbol, 0, len(tags))
	number, begin := 1, 0
	for i := 0; i < len(tags); {
		last := i
		for last < len(tags) && tags[last].Line == tags[i].Line {
			last++
		}
		for number < tags[i].Line {
			n := bytes.IndexByte(content[begin:], '\n')
			if n < 0 {
				return list, about
			}
			begin += n + 1
			number++
		}
		line := content[begin:]
		if n := bytes.IndexByte(line, '\n'); n >= 0 {
			line = line[:n]
		}
		if tags[i].Line > 0 {
			list, about = lineSections(list, about, begin, line, tags[i:last])
		}
		i = last
	}
	return list, about
}

// lineSections finds the symbols of one line, each at its first place that does not overlap another one.
func lineSections(list []zoekt.DocumentSection, about []*zoekt.Symbol, begin int, line []byte,
	tags []tag) ([]zoekt.DocumentSection, []*zoekt.Symbol) {
	first := len(list)
	for _, t := range tags[:min(len(tags), 100)] {
		if t.Name == "" {
			continue
		}
		for from := 0; from < len(line); {
			n := bytes.Index(line[from:], []byte(t.Name))
			if n < 0 {
				break
			}
			if at := from + n; at > 0 && isWord(line[at-1]) && isWord(line[at]) ||
				at+len(t.Name) < len(line) && isWord(line[at+len(t.Name)-1]) && isWord(line[at+len(t.Name)]) {
				from = at + 1 // a part of another name
				continue
			}
			start := uint32(begin + from + n)
			section := zoekt.DocumentSection{Start: start, End: start + uint32(len(t.Name))}
			at := len(list)
			for at > first && list[at-1].Start > section.Start {
				at--
			}
			if (at == first || list[at-1].End <= section.Start) && (at == len(list) || section.End <= list[at].Start) {
				list = slices.Insert(list, at, section)
				about = slices.Insert(about, at, &zoekt.Symbol{Sym: t.Name, Kind: t.Kind, Parent: t.Scope,
					ParentKind: t.In})
				break
			}
			from += n + 1
		}
	}
	return list, about
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
