package inspect

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	maxIgnored = 1000    // commits
	maxHunks   = 1000    // of one message
	maxPart    = 1 << 20 // bytes of a message, and of a line that is not of the file
)

// Blame sends the hunks of a file in order, as git blame --porcelain prints them. Names of authors are those of the
// commit's .mailmap.
func (c *Call) Blame(q *packhorsev1.BlameRequest, send func(*packhorsev1.BlameResponse) error) error {
	commit, err := c.commit("revision", q.GetRevision())
	if err != nil {
		return err
	}
	if raw := q.GetRawPath(); len(raw) > 0 {
		q.Path = string(raw)
	}
	if err := checkPath(q.GetPath()); err != nil {
		return fault.InField("path", err)
	}
	args, err := c.blameOptions(q)
	if err != nil {
		return err
	}
	cmd := command{name: "blame", args: append(args, commit.String(), "--", q.GetPath()),
		config: [][2]string{{"mailmap.blob", commit.String() + ":.mailmap"}},
		cannot: func(_, message string) error {
			if _, text, ok := strings.Cut(message, " has only "); ok {
				return fault.InvalidField("first_line", "the file has only %.30s", strings.TrimSpace(text))
			}
			if strings.Contains(message, "no such path") || strings.Contains(message, "unsupported file type") {
				return fault.InField("path", fault.New(fault.NotFound, "%q is not a file in this revision",
					fault.Short(q.GetPath())))
			}
			return nil
		}}
	b := blameReader{known: make(map[string]*packhorsev1.BlameHunk), answer: new(packhorsev1.BlameResponse), send: send}
	return c.cached(cmd, b.read)
}

// blameOptions returns options of git blame.
func (c *Call) blameOptions(q *packhorsev1.BlameRequest) ([]string, error) {
	args := []string{"--porcelain", "--no-textconv"}
	first, last := q.GetFirstLine(), q.GetLastLine()
	if first < 0 || last < 0 || last > 0 && last < first {
		return nil, fault.InvalidField("last_line", "lines %d to %d are not a range", first, last)
	}
	switch {
	case last > 0:
		args = append(args, fmt.Sprintf("-L%d,%d", max(first, 1), last))
	case first > 0:
		args = append(args, fmt.Sprintf("-L%d,", first))
	}
	if q.GetIgnoreWhitespace() {
		args = append(args, "-w")
	}
	if q.GetDetectMoves() {
		args = append(args, "-M")
	}
	if q.GetDetectCopies() {
		args = append(args, "-C")
	}
	if len(q.GetIgnoreRevisions()) > maxIgnored {
		return nil, fault.InvalidField("ignore_revisions", "more than %d commits", maxIgnored)
	}
	for n, revision := range q.GetIgnoreRevisions() {
		id, err := c.commit(fmt.Sprintf("ignore_revisions[%d]", n), revision)
		if err != nil {
			return nil, err
		}
		args = append(args, "--ignore-rev="+id.String())
	}
	return args, nil
}

// blameReader reads the output of git blame --porcelain (git-blame(1)). For each line of the file it has "ID ORIGINAL
// FINAL [LINES]", facts about the commit unless they are known, and the line itself after a TAB.
type blameReader struct {
	known    map[string]*packhorsev1.BlameHunk // the last hunk of each commit
	hunk     *packhorsev1.BlameHunk            // its facts follow; nil: there is none
	commit   *packhorsev1.BlameCommit          // of hunk; nil: it is known
	previous string                            // the fact
	answer   *packhorsev1.BlameResponse        // not sent yet
	size     int                               // bytes of answer, about
	send     func(*packhorsev1.BlameResponse) error
}

func (b *blameReader) read(out io.Reader) error {
	in := bufio.NewReaderSize(out, maxPart)
	for {
		line, err := in.ReadSlice('\n')
		isOfFile := len(line) > 0 && line[0] == '\t'
		for isOfFile && errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		switch {
		case err == io.EOF && len(line) == 0 && b.hunk == nil:
			return b.flush()
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case errors.Is(err, bufio.ErrBufferFull):
			return errOutput("blame", "a line of more than %d bytes", maxPart)
		case err == nil && isOfFile:
			err = b.end()
		case err == nil:
			b.size += len(line)
			err = b.fact(string(bytes.TrimSuffix(line, []byte("\n"))))
		}
		if err != nil {
			return err
		}
	}
}

// hunkLine is the first line about a line of the file. Only at the first line of a hunk it has the number of lines.
var hunkLine = regexp.MustCompile(`^([0-9a-f]{40,64}) ([0-9]+) ([0-9]+)(?: ([0-9]+))?$`)

// begin begins a hunk.
func (b *blameReader) begin(id, original, first, lines string) {
	number := func(text string) int32 {
		n, _ := strconv.ParseInt(text, 10, 32) // git has no larger ones
		return int32(n)
	}
	known := b.known[id]
	if b.commit = nil; known == nil {
		b.commit = &packhorsev1.BlameCommit{Oid: id, Author: new(packhorsev1.Signature),
			Committer: new(packhorsev1.Signature)}
		b.answer.Commits = append(b.answer.Commits, b.commit)
	}
	b.hunk = &packhorsev1.BlameHunk{FirstLine: number(first), Lines: number(lines), Commit: id,
		OriginalLine: number(original), OriginalPath: known.GetOriginalPath(), Boundary: known.GetBoundary(),
		PreviousCommit: known.GetPreviousCommit(), PreviousPath: known.GetPreviousPath()}
}

// fact reads a line that is not of the file.
func (b *blameReader) fact(line string) error {
	m := hunkLine.FindStringSubmatch(line)
	name, value, _ := strings.Cut(line, " ")
	switch {
	case m != nil:
		if m[4] != "" {
			b.begin(m[1], m[2], m[3], m[4])
		}
	case b.hunk == nil:
		return errOutput("blame", "%.200q outside of a hunk", line)
	case name == "boundary":
		b.hunk.Boundary = true
	case name == "previous": // the filename follows
		b.previous = value
	case name == "filename":
		id, path, _ := strings.Cut(b.previous, " ")
		b.hunk.OriginalPath, b.hunk.PreviousCommit, b.hunk.PreviousPath = unquote(value), id, unquote(path)
		b.previous = ""
	case b.commit == nil:
		return errOutput("blame", "%.200q about a known commit", line)
	case name == "summary":
		b.commit.Summary = []byte(value)
	case strings.HasPrefix(name, "author"):
		sign(b.commit.Author, strings.TrimPrefix(name, "author"), value)
	case strings.HasPrefix(name, "committer"):
		sign(b.commit.Committer, strings.TrimPrefix(name, "committer"), value)
	}
	return nil
}

// sign sets a field of a signature.
func sign(s *packhorsev1.Signature, field, value string) {
	switch field {
	case "":
		s.Name = []byte(value)
	case "-mail":
		s.Email = []byte(strings.TrimSuffix(strings.TrimPrefix(value, "<"), ">"))
	case "-time":
		s.Seconds, _ = strconv.ParseInt(value, 10, 64) // 0 as in lookup.Signature if it is not valid
	case "-tz":
		zone, _ := strconv.Atoi(value)
		s.OffsetMinutes = int32(zone/100*60 + zone%100)
	}
}

// end ends a hunk, if there is one: its facts are complete.
func (b *blameReader) end() error {
	if b.hunk == nil {
		return nil
	}
	b.known[b.hunk.Commit] = b.hunk
	b.answer.Hunks = append(b.answer.Hunks, b.hunk)
	b.hunk = nil
	if b.size < maxPart && len(b.answer.Hunks) < maxHunks {
		return nil
	}
	return b.flush()
}

func (b *blameReader) flush() error {
	if len(b.answer.Hunks) == 0 {
		return nil
	}
	err := b.send(b.answer)
	b.answer, b.size = new(packhorsev1.BlameResponse), 0
	return err
}
