package origin

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// FuzzAdvertisement reads advertisements. An accepted list can be asked for, and is read the same in version 2.
func FuzzAdvertisement(f *testing.F) {
	for _, s := range []string{"", "0000", capabilitiesV2,
		lines("version 2", "agent=git/2.39", "ls-refs=unborn", "fetch=shallow filter", "object-format=sha256"),
		lines("# service=git-upload-pack") + lines(strings.Repeat("0", 40)+" capabilities^{}\x00side-band-64k"),
		lines("# service=git-upload-pack") + lines(idOne+" HEAD\x00symref=HEAD:refs/heads/main object-format=sha1",
			idOne+" refs/heads/main", idTwo+" refs/tags/v1", idOne+" refs/tags/v1^{}"),
		lines("version 1", idOne+" refs/heads/main\x00x", "shallow "+idTwo), lines("ERR no"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		l := &listing{maxRefs: 100, prefixes: []string{"refs/"}}
		a, err := readAdvertisement(pktline.NewReader(bytes.NewReader(in)), l)
		if err != nil {
			return
		}
		request := a.lsRefs("test", l.prefixes)
		r, err := protocol.ReadRequest(pktline.NewReader(bytes.NewReader(request)), a.format, protocol.Offer{Unborn: true},
			protocol.Limits{})
		if err != nil || r.LsRefs == nil {
			t.Errorf("the request %q is not valid: %v", request, err)
		}
		old := l.result(a)
		list, err := old.List()
		if err != nil {
			return
		}
		var answer []byte
		for line := range strings.Lines(string(l.lines)) {
			answer = pktline.AppendLine(answer, strings.TrimSuffix(line, "\n"))
		}
		again := &listing{maxRefs: 100}
		if err := again.readLsRefs(pktline.NewReader(bytes.NewReader(pktline.AppendFlush(answer)))); err != nil {
			t.Fatalf("readLsRefs(%q) error = %v, want none", answer, err)
		}
		if r := again.result(a); r.Digest != old.Digest {
			t.Errorf("digest of %q changes", answer)
		}
		if got, err := again.result(a).List(); err != nil || !reflect.DeepEqual(got, list) {
			t.Errorf("List = %+v, %v, want %+v", got, err, list)
		}
	})
}

// FuzzRefs parses lists. An accepted one is sorted, without repeats, and has valid names only.
func FuzzRefs(f *testing.F) {
	for _, s := range []string{"", idOne + " refs/heads/main\n", "unborn HEAD symref-target:refs/heads/main\n",
		idOne + " HEAD symref-target:refs/heads/main\n" + idTwo + " refs/tags/v1 peeled:" + idOne + "\n",
		idOne + " refs/heads/b\n" + idOne + " refs/heads/a\n", idOne + " refs/heads/a..b\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		list, err := (&Refs{Format: git.SHA1, lines: in}).List()
		if err != nil {
			return
		}
		for i, r := range list.Refs {
			if i > 0 && r.Name <= list.Refs[i-1].Name {
				t.Errorf("%s comes after %s", r.Name, list.Refs[i-1].Name)
			}
			if _, err := git.ParseRefName(string(r.Name)); err != nil || r.ID.IsZero() {
				t.Errorf("ref %q %v is not valid", r.Name, r.ID)
			}
		}
	})
}

// FuzzPack reads packs. The result does not depend on the pieces in which the answer arrives.
func FuzzPack(f *testing.F) {
	for _, s := range []string{"", "0000", "000dpackfile\n0009\x01PACK0000",
		"000dpackfile\n000b\x02hello\n0009\x01PA\n\n0000",
		"0008NAK\n0009\x01PACK0000", "0008NAK\n0006\x01\n0000", "0031ACK " + idOne + "\n0008NAK\n0009\x01PACK0000",
		lines("ERR no"), "000dpackfile\n0007\x03no"} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, in []byte, v0 bool) {
		version := protocol.V2
		if v0 {
			version = protocol.V0
		}
		read := func(r io.Reader) (pack, progress string, err error) {
			var text strings.Builder
			p := newPack(io.NopCloser(r), pktline.NewReader(r), version, func(b []byte) { text.Write(b) })
			b, err := io.ReadAll(p)
			return string(b), text.String(), err
		}
		pack, progress, err := read(bytes.NewReader(in))
		pack2, progress2, err2 := read(iotest.OneByteReader(bytes.NewReader(in)))
		if pack != pack2 || progress != progress2 || (err == nil) != (err2 == nil) {
			t.Errorf("%q, %q, %v in one piece, %q, %q, %v byte by byte", pack, progress, err, pack2, progress2, err2)
		}
		if err == nil && len(pack)+len(progress) > len(in) {
			t.Errorf("%d bytes became %d", len(in), len(pack)+len(progress))
		}
	})
}
