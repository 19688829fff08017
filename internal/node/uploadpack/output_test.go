package uploadpack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// scripted is a Source whose packs follow a script.
type scripted struct {
	size int64 // -1: not known
	info packsource.Info
	send func(out packsource.Output) error
}

func (s *scripted) Open(context.Context, *packsource.Spec) (packsource.Pack, error) { return s, nil }
func (s *scripted) Size() int64                                                     { return s.size }
func (s *scripted) Info() packsource.Info                                           { return s.info }
func (s *scripted) Close() error                                                    { return nil }
func (s *scripted) Send(_ context.Context, out packsource.Output) error             { return s.send(out) }

// failing is a reply that takes so many bytes and no more.
type failing struct {
	*recorder
	left int
}

var errGone = errors.New("connection reset")

func (r *failing) Write(p []byte) (int, error) {
	if len(p) > r.left {
		return 0, errGone
	}
	r.left -= len(p)
	return r.recorder.Write(p)
}

func TestOutput(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	g.Git("update-ref", "refs/heads/main", g.Commit("a").String())
	r := openRepo(t, g.Dir)
	packet := pktline.AppendBand(nil, pktline.BandData, "PACK...")
	whole := func(out packsource.Output) error {
		return errors.Join(out.Progress([]byte("Counting\n")), out.KeepAlive(), second(out.Write(packet)))
	}
	fromFile := func(out packsource.Output) error {
		_, err := out.(io.ReaderFrom).ReadFrom(bytes.NewReader(packet))
		return err
	}
	broken := fault.New(fault.Unavailable, "git was killed")
	const note = "Pack of 7 objects comes from the cache.\n"
	hit := packsource.Info{Result: packsource.Hit, Objects: 7}
	known := int64(len(packet))

	for _, test := range []struct {
		name     string
		source   scripted
		args     []string
		take     int // bytes that the connection takes; 0: all
		answer   string
		progress string
		length   bool  // announced
		err      error // returned, somewhere in the chain
		told     bool
		hungUp   bool
	}{
		{name: "length unknown", source: scripted{-1, packsource.Info{}, whole}, answer: "PACK...",
			progress: "Counting\n"},
		{name: "no progress", source: scripted{-1, packsource.Info{}, whole}, args: []string{"no-progress"},
			answer: "PACK..."},
		{name: "hit", source: scripted{known, hit, fromFile}, answer: "PACK...", progress: note, length: true},
		{name: "hit with sideband-all", source: scripted{known, hit, fromFile}, args: []string{"sideband-all"},
			answer:   "PACK...",
			progress: note, length: true},
		{name: "quiet hit", source: scripted{known, hit, whole}, args: []string{"no-progress"}, answer: "PACK...",
			length: true},
		{name: "a whole fill that still tells of its progress", answer: "PACK...", length: true,
			source: scripted{known, packsource.Info{Result: packsource.Follow}, whole}},
		{name: "error before the first byte", source: scripted{-1, packsource.Info{},
			func(packsource.Output) error { return broken }},
			err: broken},
		{name: "error in the middle", err: broken, told: true, answer: "PACK...", progress: "Counting\n",
			source: scripted{-1, packsource.Info{}, func(out packsource.Output) error {
				return errors.Join(whole(out),
					broken)
			}}},
		{name: "the client hangs up at once", source: scripted{-1, packsource.Info{}, whole}, take: 1, err: errGone,
			hungUp: true},
		{name: "the client hangs up in the middle", source: scripted{-1, packsource.Info{}, whole}, take: 35,
			err: errGone, hungUp: true},
		{name: "the client hangs up before the end", source: scripted{known, packsource.Info{}, fromFile}, take: 13 +
			len(packet),
			err: errGone, hungUp: true, length: true},
		{name: "nobody to tell of the error", take: 13 + len(packet), err: errGone, hungUp: true,
			source: scripted{-1, packsource.Info{},
				func(out packsource.Output) error { out.Write(packet); return broken }}},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := testRequest{command: "fetch", args: append([]string{"want " + g.ID("main").String(), "done"},
				test.args...)}
			response := &failing{newRecorder(), 1 << 20}
			if test.take > 0 {
				response.left = test.take
			}
			in := pktline.NewReader(bytes.NewReader(q.bytes(r.Format)))
			_, err := New(&test.source, Options{Wants: WantsAny}).Serve(t.Context(), r, version2, in, response)
			_, told := errors.AsType[*node.ReportedError](err)
			_, hungUp := errors.AsType[*node.ClientConnError](err)
			if !errors.Is(err, test.err) || told != test.told || hungUp != test.hungUp {
				t.Errorf("error %v, told %v, hung up %v", err, told, hungUp)
			}
			if announced := response.length >= 0; announced != test.length ||
				announced && !test.hungUp && response.length != int64(response.Len()) {
				t.Errorf("length %d announced, %d written", response.length, response.Len())
			}
			if test.hungUp {
				return
			}
			a, err := parseAnswer(response.Bytes(), q.has("sideband-all"))
			if test.told {
				if !strings.Contains(a.bandError, "git was killed") ||
					bytes.HasSuffix(response.Bytes(), []byte("0000")) {
					t.Errorf("the client is told %q in %q", a.bandError, response.Bytes())
				}
			} else if err != nil {
				t.Error(err)
			}
			if string(a.pack) != test.answer || a.progress != test.progress {
				t.Errorf("pack %q, progress %q", a.pack, a.progress)
			}
		})
	}
}

// A client without side-band-64k gets the same pack in other packets, or bare. There a pack that is not whole ends with
// no more than a cut connection: Serve's error is not one that the client received.
func TestOutputWithoutSideband64k(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	g.Git("update-ref", "refs/heads/main", g.Commit("a").String())
	s := &testServer{Repo: g, repo: openRepo(t, g.Dir)}
	content := "PACK" + strings.Repeat("0123456789", 20_000)
	packets := pktline.AppendBand(nil, pktline.BandData, content)
	broken := fault.New(fault.Unavailable, "git was killed")
	text := strings.Repeat("Counting\n", 300)
	send := func(end error) func(packsource.Output) error {
		return func(out packsource.Output) error {
			end := end
			if _, direct := out.(io.ReaderFrom); direct {
				t.Error("a file would be sent as it is")
			}
			if out.KeepAliveAfter() > 0 {
				end = errors.Join(out.KeepAlive(), end)
			}
			return errors.Join(out.Progress([]byte(text)), second(out.Write(packets)), end)
		}
	}
	q := testRequest{command: "fetch", args: []string{"want " + g.ID("main").String(), "done"}}
	for _, session := range olderSessions {
		for _, sideband := range []string{"side-band", ""} {
			request := q.bytesV0(&dialect{sideband: sideband, end: "done"}, git.SHA1)
			source := &scripted{size: int64(len(packets)), info: packsource.Info{Result: packsource.Hit},
				send: send(nil)}
			response, _, err := s.serveAs(New(source, Options{}), session, request)
			if err != nil || response.length >= 0 {
				t.Fatalf("%+v, %q: %v, length %d", session, sideband, err, response.length)
			}
			a, err := parseAnswerV0(response.Bytes(), sideband)
			if err != nil || string(a.pack) != content || (sideband == "") != (a.progress == "") {
				t.Errorf("%+v, %q: %v, a pack of %d bytes, progress %.40q", session, sideband, err, len(a.pack),
					a.progress)
			}

			source = &scripted{size: -1, send: send(broken)}
			response, _, err = s.serveAs(New(source, Options{}), session, request)
			_, told := errors.AsType[*node.ReportedError](err)
			if !errors.Is(err, broken) || told != (sideband != "") {
				t.Errorf("%+v, %q: %v, told %v", session, sideband, err, told)
			}
			if a, _ := parseAnswerV0(response.Bytes(), sideband); strings.Contains(a.bandError,
				"git was killed") != told {
				t.Errorf("%+v, %q: the client is told %q", session, sideband, a.bandError)
			}
		}
	}
}

// Small packets are made in one buffer, however long the pack is.
func TestReframingAllocatesNothing(t *testing.T) {
	packets := pktline.AppendBand(nil, pktline.BandData, strings.Repeat("x", 200_000))
	for _, sideband := range []protocol.Sideband{protocol.SidebandMini, protocol.NoSideband} {
		out := &reframer{out: newOutput(discard{}, nil, packFormat{sideband: sideband}, time.Now())}
		out.Write(packets)
		if n := testing.AllocsPerRun(10, func() { out.Write(packets) }); n > 0 {
			t.Errorf("side-band %d: %v allocations", sideband, n)
		}
		if cap(out.buf) > 2*pktline.MaxLine {
			t.Errorf("side-band %d: a buffer of %d bytes", sideband, cap(out.buf))
		}
	}
}

// discard is a reply without a client.
type discard struct{}

func (discard) SetLength(int64)      {}
func (discard) StartBulk(bool) error { return nil }

func (discard) ReserveMemory(int64) error   { return nil }
func (discard) Flush() error                { return nil }
func (discard) Write(p []byte) (int, error) { return len(p), nil }

func second(_ int, err error) error { return err }

// A packet that does not belong to a pack, as in a damaged file, ends the answer. The client never receives it.
func TestReframerRefuses(t *testing.T) {
	t.Parallel()
	good := pktline.AppendBand(nil, pktline.BandData, "PACK")
	for _, bad := range []string{"0000", "0001", "0004", "0006\x01", "001", "zzzz", "fff0\x01PACK"} {
		for _, sideband := range []protocol.Sideband{protocol.NoSideband, protocol.SidebandMini} {
			response := newRecorder()
			out := &reframer{out: newOutput(response, nil, packFormat{sideband: sideband}, time.Now())}
			n, err := out.Write(append(bytes.Clone(good), bad...))
			if n != len(good) || err == nil || !bytes.HasSuffix(response.Bytes(), []byte("PACK")) {
				t.Errorf("%q: %d, %v, %q was sent", bad, n, err, response)
			}
		}
	}
}

func TestNotice(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	g.Git("update-ref", "refs/heads/main", g.Commit("a").String())
	r := openRepo(t, g.Dir)
	packet := pktline.AppendBand(nil, pktline.BandData, "PACK...")
	server := New(&scripted{int64(len(packet)), packsource.Info{Result: packsource.Miss},
		func(out packsource.Output) error {
			return second(out.Write(packet))
		}}, Options{Wants: WantsAny})
	for _, test := range []struct {
		notice string
		args   []string
		want   string
	}{
		{"an old state", nil, "an old state\n"},
		{"an older state", nil, "an older state\n"}, // of the cached answer
		{"", nil, ""},
		{"an old state", []string{"no-progress"}, "an old state\n"},
	} {
		session := version2
		session.Notice = test.notice
		q := testRequest{command: "fetch", args: append([]string{"want " + g.ID("main").String(), "done"}, test.args...)}
		response := newRecorder()
		in := pktline.NewReader(bytes.NewReader(q.bytes(r.Format)))
		if _, err := server.Serve(t.Context(), r, session, in, response); err != nil {
			t.Fatal(err)
		}
		got, err := parseAnswer(response.Bytes(), false)
		if err != nil {
			t.Fatal(err)
		}
		if got.progress != test.want || string(got.pack) != "PACK..." {
			t.Errorf("notice %q, arguments %q: got messages %q and pack %q, want %q", test.notice, test.args, got.progress,
				got.pack, test.want)
		}
		if response.length != int64(response.Len()) {
			t.Errorf("notice %q: announced %d bytes, sent %d", test.notice, response.length, response.Len())
		}
	}
}
