package inspect

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// BlameRequest requests the origin of the lines of a file.
type BlameRequest struct {
	In               lookup.PathIn
	First, Last      int  // lines, from 1; 0: the first and the last one
	IgnoreWhitespace bool // git blame -w
	Moves, Copies    bool // git blame -M and -C
	Ignore           []string
	Caller           balance.Caller
}

// Hunk is a range of lines that come from one commit.
type Hunk struct {
	First, Lines int // from 1
	Commit       git.ObjectID
	OriginalLine int // the first line in Commit
	Origin
	// New is the commit at its first hunk of a call, and nil otherwise.
	New *BlameCommit
}

// Origin is what Git prints of the commit of a hunk.
type Origin struct {
	Path         []byte // in that commit
	Boundary     bool   // the history ends here
	Previous     git.ObjectID
	PreviousPath []byte
}

// BlameCommit is a commit of hunks. Texts are in UTF-8 if Git could convert them.
type BlameCommit struct {
	ID                git.ObjectID
	Author, Committer lookup.Signature
	Summary           []byte
}

const maxIgnored = 1000 // commits

// Blame calls send with the hunks of a file in order, as git blame --porcelain prints them. Names of authors are those
// of the commit's .mailmap. Errors: Invalid and NotFound name the field. Exhausted, Deadline.
func (i *Inspector) Blame(ctx context.Context, r *repo.Repo, q BlameRequest, send func(*Hunk) error) error {
	names, err := i.names(ctx, r)
	if err != nil {
		return err
	}
	defer names.Close()
	args := []string{"--porcelain", "--no-textconv"}
	if args, err = q.options(names, args); err != nil {
		return err
	}
	commit, err := resolve(names, "revision", q.In.Revision)
	if err == nil {
		err = fault.InField("path", checkPath(q.In.Path))
	}
	if err == nil {
		err = fault.InField("path", names.File(lookup.PathIn{Revision: commit.String(), Path: q.In.Path}))
	}
	if err != nil {
		return err
	}
	c := command{name: "blame", args: append(args, commit.String(), "--", q.In.Path),
		config: []string{"mailmap.blob=" + commit.String() + ":.mailmap"},
		cannot: func(_, message string) error {
			if _, text, ok := strings.Cut(message, " has only "); ok {
				return fault.InField("first_line", fault.New(fault.Invalid, "the file has only %.30s", strings.TrimSpace(text)))
			}
			return nil
		}}
	return cached(i.cache, r, fmt.Sprintf("blame %q", c.args), send, func(send func(*Hunk, int) error) error {
		b := blameReader{known: make(map[git.ObjectID]*Origin), send: send}
		return i.run(ctx, r, q.Caller, c, b.read)
	})
}

// options adds options of git blame.
func (q *BlameRequest) options(names *lookup.Names, args []string) ([]string, error) {
	if q.First < 0 || q.Last < 0 || q.Last > 0 && q.Last < q.First {
		return nil, fault.InField("last_line", fault.New(fault.Invalid, "lines %d to %d are not a range", q.First, q.Last))
	}
	if q.First > 0 || q.Last > 0 {
		lines := "-L" + strconv.Itoa(max(q.First, 1)) + ","
		if q.Last > 0 {
			lines += strconv.Itoa(q.Last)
		}
		args = append(args, lines)
	}
	for _, option := range []struct {
		on   bool
		name string
	}{{q.IgnoreWhitespace, "-w"}, {q.Moves, "-M"}, {q.Copies, "-C"}} {
		if option.on {
			args = append(args, option.name)
		}
	}
	if len(q.Ignore) > maxIgnored {
		return nil, fault.InField("ignore_revisions", fault.New(fault.Invalid, "more than %d commits", maxIgnored))
	}
	for n, revision := range q.Ignore {
		id, err := resolve(names, fmt.Sprintf("ignore_revisions[%d]", n), revision)
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
	in    *bufio.Reader
	known map[git.ObjectID]*Origin
	send  func(hunk *Hunk, size int) error
	next  *Hunk // the current hunk; its facts follow
	// hasPrevious reports whether they include a previous commit.
	hasPrevious bool
}

const (
	maxFact = 16 << 10 // bytes of a name or a summary
	maxLine = 2 << 20  // bytes of another line that is not of the file
)

func (b *blameReader) read(out io.Reader) error {
	b.in = bufio.NewReaderSize(out, piece)
	for {
		line, err := b.line()
		switch {
		case err == io.EOF && b.next == nil:
			return nil
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case len(line) > 0 && line[0] == '\t':
			if err := b.flush(); err != nil {
				return err
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(" "))
		if id, ok := git.ParseObjectID(name); ok == nil {
			err = b.begin(id, value)
		} else {
			err = b.fact(string(name), value)
		}
		if err != nil {
			return errOutput("blame", "%.200q", line)
		}
	}
}

// line reads a line. Of the file's own lines it returns the beginning.
func (b *blameReader) line() (line []byte, err error) {
	part, err := b.in.ReadSlice('\n')
	line = part
	for errors.Is(err, bufio.ErrBufferFull) {
		if line[0] != '\t' {
			if line = append(line[:len(line):len(line)], part...); len(line) > maxLine {
				return nil, errOutput("blame", "a line of more than %d bytes", maxLine)
			}
		} else {
			line = []byte("\t")
		}
		part, err = b.in.ReadSlice('\n')
	}
	return bytes.TrimSuffix(line, []byte("\n")), err
}

// begin reads the numbers of a line. Only the first line of a hunk has three.
func (b *blameReader) begin(id git.ObjectID, text []byte) error {
	var n [3]int
	fields := bytes.Fields(text)
	for i, field := range fields[:min(len(fields), 3)] {
		var err error
		if n[i], err = strconv.Atoi(string(field)); err != nil {
			return err
		}
	}
	switch len(fields) {
	case 2:
		return nil
	case 3:
	default:
		return errors.New("want two or three numbers")
	}
	b.hasPrevious = false
	b.next = &Hunk{Commit: id, OriginalLine: n[0], First: n[1], Lines: n[2]}
	if known := b.known[id]; known != nil {
		b.next.Origin = *known
	} else {
		b.next.New = &BlameCommit{ID: id}
	}
	return nil
}

// fact reads a fact about the commit of the hunk.
func (b *blameReader) fact(name string, value []byte) (err error) {
	h := b.next
	if h == nil {
		return errors.New("no hunk")
	}
	if who, field, ok := strings.Cut(name, "-"); ok || name == "author" || name == "committer" || name == "summary" {
		if h.New == nil {
			return errors.New("the commit is known")
		}
		return h.New.fact(who, field, value)
	}
	switch name {
	case "boundary":
		h.Boundary = true
	case "previous":
		b.hasPrevious = true
		id, path, _ := bytes.Cut(value, []byte(" "))
		if h.Previous, err = git.ParseObjectID(id); err == nil {
			h.PreviousPath, err = unquote(path)
		}
	case "filename":
		if !b.hasPrevious { // that of another path
			h.Previous, h.PreviousPath = git.ObjectID{}, nil
		}
		h.Path, err = unquote(value)
	}
	return err
}

func (c *BlameCommit) fact(who, field string, value []byte) error {
	s := &c.Author
	if who == "committer" {
		s = &c.Committer
	}
	value = value[:min(len(value), maxFact)]
	switch {
	case who == "summary":
		c.Summary = bytes.Clone(value)
	case field == "":
		s.Name = bytes.Clone(value)
	case field == "mail":
		s.Email = bytes.Clone(bytes.TrimSuffix(bytes.TrimPrefix(value, []byte("<")), []byte(">")))
	case field == "time":
		s.Seconds, _ = strconv.ParseInt(string(value), 10, 64) // 0 as in lookup.Signature if it is not valid
	case field == "tz":
		zone, _ := strconv.Atoi(string(value))
		s.Offset = int32(zone/100*60 + zone%100)
	}
	return nil
}

// flush sends the hunk when its facts are complete.
func (b *blameReader) flush() error {
	h := b.next
	if h == nil {
		return nil
	}
	b.next = nil
	b.known[h.Commit] = &h.Origin
	size := len(h.Path) + len(h.PreviousPath)
	if c := h.New; c != nil {
		size += fixedCost + len(c.Summary) + len(c.Author.Name) + len(c.Author.Email) + len(c.Committer.Name) +
			len(c.Committer.Email)
	}
	return b.send(h, size)
}
