package githttp

import (
	"encoding/base64"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/node"
)

// archivePath is between the path of a repository and REVISION.FORMAT. Revisions have slashes, too. If there is an
// application, these paths are the application's.
const archivePath = "/-/archive/"

// archiveTypes are the content types of the formats of archives, which are the suffixes of paths.
var archiveTypes = map[string]string{
	"tar": "application/x-tar", "tar.gz": "application/gzip", "tar.zst": "application/zstd", "zip": "application/zip",
}

// archive answers a request for an archive of a repository. name is REVISION.FORMAT. The paths in the archive begin
// with the names of the repository and of the revision.
func (q *request) archive(repo, name string) {
	if !q.method(http.MethodGet) || !q.repository(repo) {
		return
	}
	q.Op = gateway.Archive
	base := strings.TrimSuffix(q.Repo.String(), ".git")
	base = base[strings.LastIndexByte(base, '/')+1:]
	err := q.identifyVisitor()
	if err == nil {
		err = q.Authorize(auth.Read)
	}
	if err != nil {
		q.fail(err)
		return
	}
	q.keepPrivate()
	a := node.Archive{IfNoneMatch: q.r.Header.Get("If-None-Match"), Head: q.r.Method == http.MethodHead}
	for format := range archiveTypes {
		if revision, ok := strings.CutSuffix(name, "."+format); ok && revision != "" && utf8.ValidString(name) {
			a.Revision, a.Format = revision, format
		}
	}
	if a.Format == "" {
		q.refuse(http.StatusNotFound, "name a revision and a format, as in main.tar.gz, main.tar.zst, main.tar or main.zip")
		return
	}
	base += "-" + strings.Map(inName, a.Revision)
	a.Prefix = base + "/"
	sink := &sink{q: q}
	made := func() {}
	sink.archive = func(h node.ArchiveHeader) {
		made()
		setArchive(sink, &a, &h, base+"."+a.Format)
	}
	q.respond(archiveTypes[a.Format], sink, gateway.EmptyBody(), func(response *gateway.Response) {
		if q.handler.Gate != nil && q.ID.Anonymous() {
			if made, q.Err = q.handler.Gate.Charge(q.r.RemoteAddr); q.Err != nil {
				return
			}
			defer func() { made() }() // also if it could not be made
		}
		q.Archive(a, response)
	})
}

// inName replaces the characters of a revision that the name of a file cannot have.
func inName(r rune) rune {
	if r == '/' || unicode.IsControl(r) {
		return '-'
	}
	return r
}

// setArchive sets the status and the header of a response with an archive.
func setArchive(s *sink, a *node.Archive, h *node.ArchiveHeader, name string) {
	s.status = http.StatusOK
	if a.IsKnown(h) {
		s.status = http.StatusNotModified
	}
	s.header = func(header http.Header) {
		header.Set("ETag", h.ETag())
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
		header.Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(h.SHA256[:])+":") // RFC 9530
		if a.Head && s.status == http.StatusOK {
			header.Set("Content-Length", strconv.FormatInt(h.Size, 10))
		}
	}
}
