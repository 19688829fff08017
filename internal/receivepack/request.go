package receivepack

import (
	"bufio"
	"bytes"
	"cmp"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

const (
	// maxHead bounds what a client may say before its pack, in bytes: git push --mirror of 100,000 refs says 15 MB.
	maxHead = 16 << 20
	// maxHeads bounds the memory for what all clients say, in bytes: headCost for each byte but for the first freeHead of each client. That is for the
	// text, for what is read from it, for what the journal gets and for what git says of it to hooks.
	maxHeads = 256 << 20
	headCost = 10
	freeHead = 64 << 10
	// maxOption bounds a push option in bytes.
	maxOption = 4 << 10
	readSize  = 64 << 10
)

// asked is what a client says before its pack (gitprotocol-pack(5), "Reference Update Request and Packfile Transfer").
type asked struct {
	head     []byte // as it came, with the packet that ends it
	commands []command
	options  []string

	report   bool // the client wants to know what became of its commands
	sideband bool
	atomic   bool
	bare     bool // it names no capability
	packet   int  // where in head the packet begins that names them, or the first command's
	features int  // where that packet's text ends: another capability fits there

	agent, session string // fit for a log
}

// command is one ref that is to change, as the client wrote it.
type command struct {
	old, new git.ObjectID
	name     string
}

// updates are the commands that name a ref that can be.
func (a *asked) updates() []Update {
	list := make([]Update, 0, len(a.commands))
	for _, c := range a.commands {
		if u, ok := c.update(); ok {
			list = append(list, u)
		}
	}
	return list
}

func (c command) update() (Update, bool) {
	name, err := git.ParseRefName(c.name)
	return Update{Ref: name, Old: c.old, New: c.new}, err == nil && name != git.HEAD
}

// pushes tells whether a pack follows.
func (a *asked) pushes() bool {
	for _, c := range a.commands {
		if !c.new.IsZero() {
			return true
		}
	}
	return false
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readSize) }}

// reader reads a request.
type reader struct {
	server *Server
	buffer *bufio.Reader
	asked  *asked
	held   int64
	kept   bool // the buffer is used after release
}

func (s *Server) newReader(request io.Reader) *reader {
	r := &reader{server: s, buffer: readers.Get().(*bufio.Reader), asked: &asked{}}
	r.buffer.Reset(request)
	return r
}

func (r *reader) release() {
	if r.held > 0 {
		r.server.heads <- <-r.server.heads - r.held
	}
	if !r.kept {
		r.buffer.Reset(nil)
		readers.Put(r.buffer)
	}
}

// rest is all of the request, from its first byte, and the part of it that is the pack.
func (r *reader) rest(a *asked) (io.Reader, *packStart) {
	r.kept = true // by a goroutine that may outlive the push
	p := &packStart{source: r.buffer}
	return io.MultiReader(bytes.NewReader(a.withReport()), p), p
}

// withReport is the head with the wish for a report, which we want even where the client does not.
func (a *asked) withReport() []byte {
	if a.report {
		return a.head
	}
	add := " report-status"
	if a.bare {
		add = "\x00report-status"
	}
	b := make([]byte, 0, len(a.head)+len(add))
	b = append(append(append(b, a.head[:a.features]...), add...), a.head[a.features:]...)
	length, err := pktline.ParseLength(b[a.packet : a.packet+4])
	if err == nil && length+len(add) <= pktline.MaxLine {
		pktline.PutLength(b[a.packet:], length+len(add))
		return b
	}
	return a.head
}

// next reads one packet into head; a packet that is none of data ends a list, as for git.
func (r *reader) next() (data []byte, at int, end bool, err error) {
	a := r.asked
	at = len(a.head)
	var length [4]byte
	if _, err := io.ReadFull(r.buffer, length[:]); err != nil {
		return nil, at, true, err
	}
	n, err := pktline.ParseLength(length[:])
	if err != nil {
		return nil, at, true, fault.Wrap(fault.Invalid, "the push is damaged", err)
	}
	a.head = append(a.head, length[:]...)
	if n < 4 {
		return nil, at, true, nil
	}
	n -= 4
	if len(a.head)+n > maxHead {
		return nil, at, true, fault.New(fault.Invalid, "the push's list of refs is longer than %d MiB; push fewer at a time", maxHead>>20)
	}
	if err := r.hold(int64(n + len(length))); err != nil {
		return nil, at, true, err
	}
	if cap(a.head)-len(a.head) < n { // twice as much: append would leave more behind
		a.head = append(make([]byte, 0, max(4<<10, 2*cap(a.head)+n)), a.head...)
	}
	a.head = a.head[:len(a.head)+n]
	data = a.head[len(a.head)-n:]
	if _, err := io.ReadFull(r.buffer, data); err != nil {
		return nil, at, true, cutOff(err)
	}
	return data, at, false, nil
}

// hold counts what the request holds.
func (r *reader) hold(n int64) error {
	if len(r.asked.head)+int(n) <= freeHead {
		return nil
	}
	n *= headCost
	all := <-r.server.heads
	defer func() { r.server.heads <- all }()
	if all+n > maxHeads {
		return fault.Retry(fault.Exhausted, retryPush, "too many large pushes at the same time; try again")
	}
	all += n
	r.held += n
	return nil
}

// cutOff is the error of a request that ended too early. One of the connection has no kind, and is the client's.
func cutOff(err error) error {
	if fault.KindOf(err) == fault.Internal {
		return fault.Wrap(fault.Invalid, "the push was cut off, or took too long", err)
	}
	return err
}

// read takes the request in to where the pack begins. No command at all is no error.
func (r *reader) read(format git.ObjectFormat, options bool) (*asked, error) {
	a := r.asked
	f := features{}
	for {
		line, at, end, err := r.next()
		if err == io.EOF && len(a.head) == 0 {
			return a, nil
		} else if err != nil {
			return nil, cutOff(err)
		}
		if end {
			break
		}
		if err := r.line(line, at, format, &f); err != nil {
			return nil, err
		}
	}
	if len(a.commands) == 0 {
		return a, nil
	}
	if want := cmp.Or(f.format, git.SHA1.String()); want != format.String() {
		return nil, fault.New(fault.Invalid, "the repository's object format is %s, and the push's %.20q", format, want)
	}
	a.report, a.sideband, a.atomic = f.report, f.sideband, f.atomic
	a.agent, a.session = printable(f.agent), printable(f.session)
	if !f.options || !options {
		return a, nil
	}
	return a, r.pushOptions()
}

// line reads one line of the list.
func (r *reader) line(line []byte, at int, format git.ObjectFormat, f *features) error {
	a := r.asked
	line = bytes.TrimSuffix(line, []byte("\n"))
	text, list, has := bytes.Cut(line, []byte{0})
	if has {
		f.read(string(list))
		a.packet, a.features, a.bare = at, at+4+len(line), false
	}
	if bytes.HasPrefix(text, []byte("shallow ")) {
		if _, err := git.ParseObjectID(string(text[8:])); err != nil {
			return fault.New(fault.Invalid, "protocol error: expected shallow sha, got %.80q", text[8:])
		}
		return nil
	}
	if string(text) == "push-cert" {
		return fault.New(fault.Invalid, "signed pushes are not taken; push without --signed")
	}
	c, err := parseCommand(text, format)
	if err != nil {
		return err
	}
	if len(a.commands) == r.server.options.MaxCommands {
		return fault.New(fault.Invalid, "a push may change %d refs at most; push fewer at a time", r.server.options.MaxCommands)
	}
	if a.features == 0 {
		a.packet, a.features, a.bare = at, at+4+len(line), true
	}
	if len(a.commands) == cap(a.commands) {
		a.commands = slices.Grow(a.commands, 1+len(a.commands))
	}
	a.commands = append(a.commands, c)
	return nil
}

// parseCommand reads "OLD NEW NAME". A name that no ref can have is git's to refuse, by itself and not the push with it, but for what could
// be taken for another line in a report, a log or a hook's input.
func parseCommand[T string | []byte](text T, format git.ObjectFormat) (c command, err error) {
	n := format.HexSize()
	if len(text) < 2*n+3 || text[n] != ' ' || text[2*n+1] != ' ' {
		return c, fault.New(fault.Invalid, "protocol error: expected old/new/ref, got %.80q", text)
	}
	if c.old, err = git.ParseObjectID(text[:n]); err == nil {
		c.new, err = git.ParseObjectID(text[n+1 : 2*n+1])
	}
	if err != nil {
		return c, fault.New(fault.Invalid, "protocol error: expected old/new/ref, got %.80q", text)
	}
	c.name = string(text[2*n+2:])
	if len(c.name) > git.MaxRefName {
		return c, fault.New(fault.Invalid, "the name of a ref is longer than %d bytes", git.MaxRefName)
	}
	if i := strings.IndexFunc(c.name, func(r rune) bool { return r <= ' ' || r == 0x7f }); i >= 0 {
		return c, fault.New(fault.Invalid, "%.80q cannot be the name of a ref", c.name)
	}
	return c, nil
}

// pushOptions reads the options that follow the commands.
func (r *reader) pushOptions() error {
	a := r.asked
	for {
		line, _, end, err := r.next()
		if err != nil {
			return cutOff(err)
		}
		if end {
			return nil
		}
		option := string(bytes.TrimSuffix(line, []byte("\n")))
		switch {
		case len(a.options) == r.server.options.MaxOptions:
			return fault.New(fault.Invalid, "a push may have %d options at most", r.server.options.MaxOptions)
		case len(option) > maxOption:
			return fault.New(fault.Invalid, "a push option is longer than %d bytes", maxOption)
		case strings.ContainsFunc(option, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return fault.New(fault.Invalid, "a push option has a control character: %.80q", option)
		}
		a.options = append(a.options, option)
	}
}

// features are the capabilities that a client chose.
type features struct {
	report, sideband, options, atomic bool
	format, agent, session            string
}

// isSpace tells what ends a capability for git: what it takes for one word is one for us, too.
func isSpace(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == '\r' }

func (f *features) read(list string) {
	for word := range strings.FieldsFuncSeq(list, isSpace) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "report-status", "report-status-v2":
			f.report = true
		case "side-band-64k":
			f.sideband = true
		case "push-options":
			f.options = true
		case "atomic":
			f.atomic = true
		case "object-format":
			f.format = value
		case "agent":
			f.agent = value
		case "session-id":
			f.session = value
		}
	}
}

// printable is what a client says of itself, fit for a log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '.'
		}
		return r
	}, s[:min(len(s), 256)])
}
