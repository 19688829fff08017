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
	// maxHead is the maximum size of the commands and options of a push in bytes: git push --mirror of 100,000 refs sends
	// 15 MB.
	maxHead = 16 << 20
	// maxOption is the maximum length of a push option in bytes.
	maxOption = 4 << 10
	readSize  = 64 << 10
)

// The memory that all requests together need is limited to maxMemory bytes. A request counts memoryFactor bytes for
// each byte beyond the first freeHead. That covers its text, the parsed commands, and the input of the journal and the
// hooks.
const (
	maxMemory    = 256 << 20
	memoryFactor = 10
	freeHead     = 64 << 10
)

// pushRequest is what a client sends before its pack (gitprotocol-pack(5), "Reference Update Request and Packfile
// Transfer").
type pushRequest struct {
	head     []byte // as received, with the flush packets
	commands []command
	options  []string

	report   bool // the client wants a report
	sideband bool
	atomic   bool

	agent, session string // printable

	noCapabilities bool // the client sent no list of capabilities
	packet         int  // offset in head of the packet with the capabilities, or of the first command
	capabilities   int  // offset in head at which a capability can be added
}

// command is the change of one ref, as the client wrote it.
type command struct {
	old, new git.ObjectID
	name     string
}

// updates returns the commands with a valid ref name.
func (r *pushRequest) updates() []Update {
	list := make([]Update, 0, len(r.commands))
	for _, c := range r.commands {
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

// hasPack reports whether a pack follows.
func (r *pushRequest) hasPack() bool {
	return slices.ContainsFunc(r.commands, func(c command) bool { return !c.new.IsZero() })
}

// withReport returns head with the capability report-status, because the server needs a report even if the client wants
// none.
func (r *pushRequest) withReport() []byte {
	if r.report {
		return r.head
	}
	capability := " report-status"
	if r.noCapabilities {
		capability = "\x00report-status"
	}
	b := make([]byte, 0, len(r.head)+len(capability))
	b = append(append(append(b, r.head[:r.capabilities]...), capability...), r.head[r.capabilities:]...)
	length, err := pktline.ParseLength(b[r.packet : r.packet+4])
	if err == nil && length+len(capability) <= pktline.MaxLine {
		pktline.PutLength(b[r.packet:], length+len(capability))
		return b
	}
	return r.head
}

var readBuffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readSize) }}

// requestReader reads a pushRequest.
type requestReader struct {
	server  *Server
	buffer  *bufio.Reader
	request *pushRequest
	memory  int64 // bytes reserved
	inUse   bool  // the buffer is used after release
}

func (s *Server) newRequestReader(body io.Reader) *requestReader {
	r := &requestReader{server: s, buffer: readBuffers.Get().(*bufio.Reader), request: &pushRequest{}}
	r.buffer.Reset(body)
	return r
}

func (r *requestReader) release() {
	if r.memory > 0 {
		r.server.memory <- <-r.server.memory - r.memory
	}
	if !r.inUse {
		r.buffer.Reset(nil)
		readBuffers.Put(r.buffer)
	}
}

// rest returns the whole body for Git, and the part of it that is the pack.
func (r *requestReader) rest(request *pushRequest) (io.Reader, *packStart) {
	r.inUse = true // by a goroutine that may outlive the push
	p := &packStart{body: r.buffer}
	return io.MultiReader(bytes.NewReader(request.withReport()), p), p
}

// next reads one packet into head, and returns its offset there. A packet without data ends a list, as in Git.
func (r *requestReader) next() (data []byte, at int, end bool, err error) {
	a := r.request
	at = len(a.head)
	var length [4]byte
	if _, err := io.ReadFull(r.buffer, length[:]); err != nil {
		return nil, at, true, err
	}
	n, err := pktline.ParseLength(length[:])
	if err != nil {
		return nil, at, true, fault.Wrap(fault.Invalid, "invalid push request", err)
	}
	a.head = append(a.head, length[:]...)
	if n < 4 {
		return nil, at, true, nil
	}
	n -= 4
	if len(a.head)+n > maxHead {
		return nil, at, true, fault.New(fault.Invalid,
			"the push has more than %d MiB of ref names; push fewer refs at a time", maxHead>>20)
	}
	if err := r.reserve(int64(n + len(length))); err != nil {
		return nil, at, true, err
	}
	if cap(a.head)-len(a.head) < n { // append would grow by less, and leave more garbage
		a.head = append(make([]byte, 0, max(4<<10, 2*cap(a.head)+n)), a.head...)
	}
	a.head = a.head[:len(a.head)+n]
	data = a.head[len(a.head)-n:]
	if _, err := io.ReadFull(r.buffer, data); err != nil {
		return nil, at, true, errCutOff(err)
	}
	return data, at, false, nil
}

// reserve counts the memory for n more bytes of the request.
func (r *requestReader) reserve(n int64) error {
	if len(r.request.head)+int(n) <= freeHead {
		return nil
	}
	n *= memoryFactor
	all := <-r.server.memory
	defer func() { r.server.memory <- all }()
	if all+n > maxMemory {
		return fault.Retry(fault.Exhausted, fault.RetryLater, "too many large pushes at the same time; try again")
	}
	all += n
	r.memory += n
	return nil
}

// errCutOff returns the error of a request that ended too early. An error of the connection has no kind, and is the
// client's.
func errCutOff(err error) error {
	if fault.KindOf(err) == fault.Internal {
		return fault.Wrap(fault.Invalid, "the push was interrupted or took too long", err)
	}
	return err
}

// read reads the request up to the pack. A request without commands is not an error. options reports whether push
// options were offered.
func (r *requestReader) read(format git.ObjectFormat, options bool) (*pushRequest, error) {
	a := r.request
	f := capabilities{}
	for {
		line, at, end, err := r.next()
		if err == io.EOF && len(a.head) == 0 {
			return a, nil
		} else if err != nil {
			return nil, errCutOff(err)
		}
		if end {
			break
		}
		if err := r.readLine(line, at, format, &f); err != nil {
			return nil, err
		}
	}
	if len(a.commands) == 0 {
		return a, nil
	}
	if want := cmp.Or(f.format, git.SHA1.String()); want != format.String() {
		return nil, fault.New(fault.Invalid, "object format mismatch: the repository has %s, the push %.20q", format, want)
	}
	a.report, a.sideband, a.atomic = f.report, f.sideband, f.atomic
	a.agent, a.session = printable(f.agent), printable(f.session)
	if !f.options || !options {
		return a, nil
	}
	return a, r.readOptions()
}

// readLine reads one line of the list of commands.
func (r *requestReader) readLine(line []byte, at int, format git.ObjectFormat, f *capabilities) error {
	a := r.request
	line = bytes.TrimSuffix(line, []byte("\n"))
	text, list, has := bytes.Cut(line, []byte{0})
	if has {
		f.read(string(list))
		a.packet, a.capabilities, a.noCapabilities = at, at+4+len(line), false
	}
	if bytes.HasPrefix(text, []byte("shallow ")) {
		if _, err := git.ParseObjectID(string(text[8:])); err != nil {
			return fault.New(fault.Invalid, "protocol error: expected shallow sha, got %.80q", text[8:])
		}
		return nil
	}
	if string(text) == "push-cert" {
		return fault.New(fault.Invalid, "signed pushes are not supported; push without --signed")
	}
	c, err := parseCommand(text, format)
	if err != nil {
		return err
	}
	if len(a.commands) == r.server.options.MaxCommands {
		return fault.New(fault.Invalid, "too many refs: one push can change %d; push fewer at a time",
			r.server.options.MaxCommands)
	}
	if a.capabilities == 0 {
		a.packet, a.capabilities, a.noCapabilities = at, at+4+len(line), true
	}
	if len(a.commands) == cap(a.commands) {
		a.commands = slices.Grow(a.commands, 1+len(a.commands))
	}
	a.commands = append(a.commands, c)
	return nil
}

// parseCommand reads "OLD NEW NAME". Most invalid ref names are left to Git, which refuses them one by one. Only names
// that could be read as another line of a report, a log or a hook's input fail the whole push.
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
		return c, fault.New(fault.Invalid, "ref name longer than %d bytes", git.MaxRefName)
	}
	if i := strings.IndexFunc(c.name, func(r rune) bool { return r <= ' ' || r == 0x7f }); i >= 0 {
		return c, fault.New(fault.Invalid, "invalid ref name %q", fault.Short(c.name))
	}
	return c, nil
}

// readOptions reads the push options, which follow the commands.
func (r *requestReader) readOptions() error {
	a := r.request
	for {
		line, _, end, err := r.next()
		if err != nil {
			return errCutOff(err)
		}
		if end {
			return nil
		}
		option := string(bytes.TrimSuffix(line, []byte("\n")))
		switch {
		case len(a.options) == r.server.options.MaxOptions:
			return fault.New(fault.Invalid, "too many push options: the maximum is %d", r.server.options.MaxOptions)
		case len(option) > maxOption:
			return fault.New(fault.Invalid, "push option longer than %d bytes", maxOption)
		case strings.ContainsFunc(option, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return fault.New(fault.Invalid, "control character in push option %.80q", option)
		}
		a.options = append(a.options, option)
	}
}

// capabilities are those that a client chose (gitprotocol-capabilities(5)).
type capabilities struct {
	report, sideband, options, atomic bool
	format, agent, session            string
}

// isSpace reports whether a character separates capabilities in Git.
func isSpace(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == '\r' }

func (f *capabilities) read(list string) {
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

// printable replaces the characters of a client's agent or session ID that do not belong into a log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '.'
		}
		return r
	}, s[:min(len(s), 256)])
}
