package gitssh_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

func TestLFSTransfer(t *testing.T) {
	t.Parallel()
	n := newLFSNode()
	s, client := serveLFS(t, n, nil)
	here, content := n.add("here"), strings.Repeat("0123456789", 20_000)
	object := lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
	size := fmt.Sprintf("size=%d", object.Size)
	batch := lines("batch", "transfer=ssh", "hash-algo=sha256", "refname=refs/heads/main", "delim",
		here.OID.String()+" 4", object.OID.String()+" 200000", "flush")
	answer := func(first, second string) string {
		return lines("status 200", "hash-algo=sha256", "delim", here.OID.String()+" 4 "+first,
			object.OID.String()+" 200000 "+second, "flush")
	}
	name := object.OID.String()
	got, status := transfer(t, client, "upload", batch, lines("verify-object "+name, size, "flush"),
		put(object, content, 32768), put(object, content, 1000), lines("verify-object "+name+" 200000", "flush"),
		lines("quit", "flush"), "never read")
	want := answer("noop", "upload") + failure(404, "this repository does not have the LFS object "+name+
		" of 200000 bytes") + okay + okay + okay + okay
	if got != want || status != 0 {
		t.Errorf("upload = %q, status %d, want %q", got, status, want)
	}
	missing := strings.Repeat("0", 64) // get-object reports it; clients would ignore noop
	got, status = transfer(t, client, "download", lines("batch", "delim", missing+" 1", "flush"))
	if want := lines("status 200", "hash-algo=sha256", "delim", missing+" 1 download", "flush"); got != want ||
		status != 0 {
		t.Errorf("batch of a missing object = %q, status %d, want %q", got, status, want)
	}
	got, status = transfer(t, client, "download", batch, lines("get-object "+name, size, "flush"),
		lines("get-object "+here.OID.String(), "size=4", "flush"))
	data := string(pktline.Append(pktline.Append(pktline.Append(pktline.Append(nil, content[:65515]),
		content[65515:131030]), content[131030:196545]), content[196545:]))
	want = answer("download", "download") + lines("status 200", size, "delim") + data + "0000" +
		lines("status 200", "size=4", "delim") + "0008here0000"
	if got != want || status != 0 {
		t.Errorf("download = %.200q, status %d, want %.200q", got, status, want)
	}
	for name, want := range map[string]float64{
		"packhorse_ssh_sessions_total{command=lfs_transfer}":              3,
		"packhorse_lfs_bytes_total{operation=lfs_download}":               200_004,
		"packhorse_lfs_bytes_total{operation=lfs_upload}":                 200_000,
		"packhorse_requests_total{operation=lfs_download,result=ok}":      2,
		"packhorse_requests_total{operation=lfs_upload,result=ok}":        2,
		"packhorse_requests_total{operation=lfs_batch,result=ok}":         3,
		"packhorse_requests_total{operation=lfs_verify,result=ok}":        1,
		"packhorse_requests_total{operation=lfs_verify,result=not_found}": 1,
	} {
		if got := s.value(name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if log := s.log.String(); strings.Count(log, "operation=lfs_upload") != 2 ||
		!strings.Contains(log, "received_bytes=200000") {
		t.Errorf("the log has not a line for each upload:\n%s", log)
	}
}

func TestLFSLocks(t *testing.T) {
	t.Parallel()
	n := newLFSNode()
	_, client := serveLFS(t, n, nil)
	n.locks = []lfs.Lock{{ID: "other", Path: "b c.bin", Owner: "bob", Time: time.Unix(1e9, 0)}}
	args := func(id, path, owner string) []string {
		return []string{"id=" + id, "path=" + path, "locked-at=2001-09-09T01:46:40Z", "ownername=" + owner}
	}
	alice, bob := args("l1", "a.bin", "alice"), args("other", "b c.bin", "bob")
	got, status := transfer(t, client, "upload",
		lines("lock", "path=a.bin", "refname=refs/heads/main", "flush"),
		lines("lock", "path=b c.bin", "delim", "flush"),
		lines("list-lock", "limit=10", "flush"), lines("list-locks", "path=a.bin", "flush"),
		lines("unlock other", "flush"), lines("unlock other", "force=true", "flush"),
		lines("unlock l1", "refname=x", "flush"), lines("unlock l1", "flush"), lines("lock", "flush"),
		lines("list-lock", "limit=-1", "flush"))
	list := func(id, path, owner, who string) []string {
		return []string{"lock " + id, "path " + id + " " + path, "locked-at " + id + " 2001-09-09T01:46:40Z",
			"ownername " + id + " " + owner, "owner " + id + " " + who}
	}
	say := func(parts ...[]string) (text string) {
		for _, part := range parts {
			text += lines(part...)
		}
		return text + "0000"
	}
	mine := list("l1", "a.bin", "alice", "ours")
	want := say([]string{"status 201"}, alice) +
		say([]string{"status 409"}, bob, []string{"delim", "already locked"}) +
		say([]string{"status 200", "next-cursor=more", "delim"}, list("other", "b c.bin", "bob", "theirs"), mine) +
		say([]string{"status 200", "delim"}, mine) + failure(403, "the lock of another user") +
		say([]string{"status 200"}, bob) + say([]string{"status 200"}, alice) + failure(404, "no such lock") +
		failure(400, "lock without a path") + failure(400, `invalid limit "-1"`)
	if got != want || status != 0 {
		t.Errorf("locks = %q, status %d, want %q", got, status, want)
	}
}

func TestLFSAuthenticate(t *testing.T) {
	t.Parallel()
	_, client := serveLFS(t, newLFSNode(), nil)
	for _, word := range []string{"download", "upload"} {
		out, said, status := run(t, client, "", "git-lfs-authenticate '/team/a b.git' "+word, "")
		var login gateway.LFSLogin
		if err := json.Unmarshal([]byte(out), &login); err != nil || said != "" || status != 0 {
			t.Fatalf("%s = %q, %q, status %d, want JSON", word, out, said, status)
		}
		if login.Href != "https://git.example.com/code/team/a%20b.git/info/lfs" || login.ExpiresIn != 900 ||
			!strings.HasPrefix(login.Header["Authorization"], "Bearer ") {
			t.Errorf("%s = %+v, want a URL and a token", word, login)
		}
	}
	for _, words := range []string{"app", "app lock", "app upload x", "app 'upload", "", "-x upload"} {
		out, said, status := run(t, client, "", "git-lfs-authenticate "+words, "")
		if out != "" || status != 1 || !strings.Contains(said, "git-lfs-authenticate") {
			t.Errorf("git-lfs-authenticate %s = %q, %q, status %d, want a message and 1", words, out, said, status)
		}
	}
}

func TestLFSIsOff(t *testing.T) {
	t.Parallel()
	noURL := func(o *gitssh.Options) { o.LFS.URL = nil }
	_, without := serveLFS(t, newLFSNode(), func(o *gitssh.Options) { o.LFS = nil })
	_, local := serveLFS(t, newLFSNode(), noURL)
	for _, c := range []struct {
		client        *ssh.Client
		command, want string
		status        int
	}{
		{without, "git-lfs-authenticate app upload", "Git LFS is not supported by this server", 127},
		{without, "git-lfs-transfer app upload", "Git LFS is not supported by this server", 127},
		{local, "git-lfs-authenticate app upload", "the operator has to set lfs.url", 127},
	} {
		out, said, status := run(t, c.client, "", c.command, version1+lines("batch", "delim", "flush"))
		if !strings.Contains(out+said, c.want) || status != c.status {
			t.Errorf("%s = %q, %q, status %d, want %q and %d", c.command, out, said, status, c.want, c.status)
		}
	}
}
