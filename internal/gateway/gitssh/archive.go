package gitssh

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// uploadArchive is the command of git archive --remote (git-upload-archive(1), and builtin/upload-archive.c).
const uploadArchive protocol.Service = "git-upload-archive"

// Limits of the arguments of git archive. The number is git's own.
const (
	maxArguments     = 64
	maxArgumentBytes = 64 << 10 // of all arguments
)

// archive runs a session of git archive, and returns its exit status.
func (s *session) archive() int {
	defer s.openInput()()
	q := s.begin(gateway.Archive)
	defer q.End(q)
	if !q.may(auth.Read) {
		return 1
	}
	_ = s.setReadDeadline(time.Now().Add(s.ReadStall))
	args, err := readArguments(s.input)
	_ = s.setReadDeadline(time.Time{})
	var a node.Archive
	if err == nil {
		a, err = parseArchive(args)
	}
	if err != nil {
		q.fail(err)
		return 1
	}
	ok := q.respondTo(&archiveSink{sink{q: q}}, gateway.EmptyBody(), func(response *gateway.Response) {
		q.Archive(a, response)
	})
	if !ok {
		return 1
	}
	if _, err := s.send(pktline.AppendFlush(nil)); err != nil {
		return 1
	}
	return 0
}

// readArguments reads the packets with the arguments.
func readArguments(r *bufio.Reader) (args []string, err error) {
	packets, left := pktline.NewReader(r), maxArgumentBytes
	for {
		kind, line, err := packets.Next()
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, "the arguments of git archive are incomplete", err)
		}
		if kind == pktline.Flush {
			return args, nil
		}
		arg, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("argument "))
		if left -= len(arg); kind != pktline.Data || !ok {
			return nil, fault.New(fault.Invalid, "invalid packet: want an argument or a flush packet")
		}
		if len(args) == maxArguments || left < 0 {
			return nil, fault.New(fault.Invalid, "more than %d arguments, or %d bytes of them", maxArguments, maxArgumentBytes)
		}
		args = append(args, string(arg))
	}
}

// parseArchive parses arguments of git-archive(1). The compression level has no effect, and there is no progress.
func parseArchive(args []string) (a node.Archive, err error) {
	options := flag.NewFlagSet("", flag.ContinueOnError)
	options.SetOutput(io.Discard)
	options.StringVar(&a.Format, "format", "tar", "")
	options.StringVar(&a.Prefix, "prefix", "", "")
	for _, name := range strings.Fields("v verbose 0 1 2 3 4 5 6 7 8 9") {
		options.Bool(name, false, "")
	}
	var paths []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, paths = args[:i], args[i+1:]
	}
	var names []string
	for len(args) > 0 {
		if err := options.Parse(args); err != nil {
			return a, fault.New(fault.Invalid, "git archive: %.100q: use --format=, --prefix=, a revision and paths",
				err.Error())
		}
		if args = options.Args(); len(args) > 0 { // options can follow a name
			names, args = append(names, args[0]), args[1:]
		}
	}
	names = append(names, paths...)
	if a.Format == "tgz" {
		a.Format = "tar.gz"
	}
	if len(names) == 0 || names[0] == "" {
		return a, fault.New(fault.Invalid, "git archive: name a revision")
	}
	if !utf8.ValidString(a.Format + a.Prefix + strings.Join(names, "")) {
		return a, fault.New(fault.Invalid, "git archive: the arguments are not UTF-8")
	}
	a.Revision, a.Paths = names[0], names[1:]
	return a, nil
}

// archiveSink sends an archive on side-band 1, after the packet that accepts the request.
type archiveSink struct{ sink }

// Begin implements gateway.Sink.
func (s *archiveSink) Begin() error {
	_, err := s.write(pktline.AppendFlush(pktline.AppendLine(nil, "ACK")))
	return err
}

// Write implements gateway.Sink.
func (s *archiveSink) Write(p []byte) (int, error) {
	n, err := s.ReadFrom(bytes.NewReader(p))
	return int(n), err
}

// ReadFrom implements gateway.Sink.
func (s *archiveSink) ReadFrom(src io.Reader) (int64, error) {
	return s.sendPackets(src, []byte{byte(pktline.BandData)})
}
