package githttp

import (
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// The transfer tus (tus.io, version 1.0.0) resumes interrupted uploads: HEAD returns how many bytes have arrived, and
// PATCH continues there. URLs come from the batch response; the protocol's extension for their creation is not
// supported.
const (
	tus        = "tus"
	tusVersion = "1.0.0"
	tusType    = "application/offset+octet-stream"
	tusHeader  = "Tus-Resumable"
	tusOffset  = "Upload-Offset"
)

const typeObject = "application/octet-stream"

// lfsObject answers a request for the object OID/SIZE.
func (q *request) lfsObject(name string) {
	switch q.r.Method {
	case http.MethodGet:
		q.Op = gateway.LFSDownload
	case http.MethodHead:
		if q.Op = gateway.LFSVerify; q.r.Header.Get(tusHeader) != "" {
			q.Op = gateway.LFSPart
		}
	case http.MethodPut, http.MethodPatch:
		q.Op = gateway.LFSUpload
	default:
		q.w.Header().Set("Allow", "GET, HEAD, PUT, PATCH")
		q.refuse(http.StatusMethodNotAllowed, "use GET, HEAD, PUT or PATCH")
		return
	}
	object, err := parseObject(name)
	if err != nil {
		q.fail(err)
		return
	}
	switch q.Op {
	case gateway.LFSDownload:
		q.lfsDownload(object)
	case gateway.LFSVerify:
		q.lfsHead(object)
	case gateway.LFSPart:
		q.tusHead(object)
	case gateway.LFSUpload:
		if q.r.Method == http.MethodPut {
			q.lfsPut(object)
		} else {
			q.tusPatch(object)
		}
	}
}

// parseObject parses OID/SIZE.
func parseObject(name string) (o lfs.Object, err error) {
	id, size, _ := strings.Cut(name, "/")
	if o.OID, err = lfs.ParseOID(id); err != nil {
		return o, err
	}
	n, err := parseSize(size)
	if err != nil {
		return o, fault.New(fault.Invalid, "%.40q is not the size of an LFS object", size)
	}
	o.Size = n
	return o, nil
}

// parseSize parses a number of bytes: digits only.
func parseSize(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err
}

// lfsDownload sends an object or a part of it.
func (q *request) lfsDownload(o lfs.Object) {
	if q.mayLFS(auth.Read) {
		q.sendLFS(o, http.Header{"Content-Type": {typeObject}})
	}
}

// sendLFS sends an object or the requested part of it to a caller who may read it. further is added to the header.
func (q *request) sendLFS(o lfs.Object, further http.Header) {
	if q.r.Method == http.MethodHead || hasObject(q.r.Header, o) {
		q.findLFS(o, further)
		return
	}
	download, status := lfs.Download{Object: o, Length: -1}, http.StatusOK
	header := q.r.Header
	if condition := header.Get("If-Range"); condition == "" || condition == etag(o.OID) {
		first, length, kind := parseRange(header["Range"], o.Size)
		switch kind {
		case rangeUnsatisfiable:
			q.w.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(o.Size, 10))
			q.refuse(http.StatusRequestedRangeNotSatisfiable, "the object does not have the bytes of this range")
			return
		case rangeValid:
			download.Offset, download.Length, status = first, length, http.StatusPartialContent
		}
	}
	sink := &sink{q: q, status: status, header: func(h http.Header) {
		setLFSHeader(h, o, further)
		if status == http.StatusPartialContent {
			h.Set("Content-Range", "bytes "+strconv.FormatInt(download.Offset, 10)+"-"+
				strconv.FormatInt(download.Offset+download.Length-1, 10)+"/"+strconv.FormatInt(o.Size, 10))
		}
	}}
	q.respond("", sink, gateway.EmptyBody(), func(response *gateway.Response) {
		q.LFSDownload(download, response)
	})
}

// setLFSHeader sets headers of a response with an object.
func setLFSHeader(h http.Header, o lfs.Object, further http.Header) {
	maps.Copy(h, further)
	h.Set("ETag", etag(o.OID))
	h.Set("Accept-Ranges", "bytes")
	h.Set("X-Content-Type-Options", "nosniff")
}

func etag(id lfs.OID) string { return `"` + id.String() + `"` }

// rangeKind is the result of parseRange.
type rangeKind int

const (
	rangeNone          rangeKind = iota // the whole object has to be sent
	rangeValid                          // a part of it
	rangeUnsatisfiable                  // 416
)

// parseRange parses a Range header (RFC 9110, section 14.2) for content of a size. A header that is invalid, or has
// several ranges, is ignored, as the RFC permits: clients of Git LFS ask for one.
func parseRange(header []string, size int64) (first, length int64, kind rangeKind) {
	if len(header) != 1 {
		return 0, 0, rangeNone
	}
	unit, spec, _ := strings.Cut(header[0], "=")
	from, to, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !strings.EqualFold(unit, "bytes") || strings.Contains(spec, ",") {
		return 0, 0, rangeNone
	}
	last := size - 1
	var err error
	switch {
	case from == "": // the last bytes
		n, err := parseSize(to)
		if err != nil {
			return 0, 0, rangeNone
		}
		if first = max(size-n, 0); n == 0 {
			first = size
		}
	default:
		if first, err = parseSize(from); err != nil {
			return 0, 0, rangeNone
		}
		if to != "" {
			if last, err = parseSize(to); err != nil || last < first {
				return 0, 0, rangeNone
			}
			last = min(last, size-1)
		}
	}
	if first >= size {
		return 0, 0, rangeUnsatisfiable
	}
	return first, last - first + 1, rangeValid
}

// hasObject reports whether a client has the object (RFC 9110, section 13.1.2).
func hasObject(h http.Header, o lfs.Object) bool {
	condition := h.Get("If-None-Match")
	return condition == "*" || strings.Contains(condition, etag(o.OID))
}

// lfsHead answers a HEAD request for an object, and a GET request of a client that has it.
func (q *request) lfsHead(o lfs.Object) {
	if q.mayLFS(auth.Read) {
		q.findLFS(o, http.Header{"Content-Type": {typeObject}})
	}
}

// findLFS is sendLFS without the object.
func (q *request) findLFS(o lfs.Object, further http.Header) {
	sink := &sink{q: q, header: func(h http.Header) {
		setLFSHeader(h, o, further)
		h.Set("Content-Length", strconv.FormatInt(o.Size, 10))
	}}
	if hasObject(q.r.Header, o) {
		sink.status, sink.header = http.StatusNotModified, func(h http.Header) { setLFSHeader(h, o, further) }
	}
	q.respond("", sink, gateway.EmptyBody(), func(response *gateway.Response) { q.FindLFS(o, response) })
}

// lfsPut takes a whole object (docs/api/basic-transfers.md).
func (q *request) lfsPut(o lfs.Object) {
	if !q.mayLFS(auth.Write) {
		return
	}
	switch {
	case q.r.Header.Get("Content-Range") != "":
		q.refuse(http.StatusBadRequest, "Content-Range is not supported; upload the whole object, or use the transfer tus")
		return
	case q.r.ContentLength >= 0 && q.r.ContentLength != o.Size:
		q.refuse(http.StatusUnprocessableEntity, "the object has "+strconv.FormatInt(o.Size, 10)+" bytes, but the request "+
			strconv.FormatInt(q.r.ContentLength, 10))
		return
	}
	sink := &sink{q: q, header: func(h http.Header) { h.Set("Content-Length", "0") }}
	q.lfsUpload(lfs.Upload{Object: o}, sink, new(int64))
}

// lfsUpload takes an object, or its part after an offset. It sets how many bytes of the object are stored, before the
// header of the response.
func (q *request) lfsUpload(u lfs.Upload, sink *sink, stored *int64) {
	if encoding := q.r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		q.refuse(http.StatusUnsupportedMediaType, "an object has to be sent without a content encoding")
		return
	}
	body, err := q.StreamBody(q.source())
	if err != nil {
		q.fail(err)
		return
	}
	defer body.Close()
	body.LimitTo(u.Size - u.Offset)
	if u.Ref = q.r.URL.Query().Get(lfsRef); len(u.Ref) > maxRef {
		u.Ref = "" // it is not of a batch
	}
	q.respond("", sink, body, func(response *gateway.Response) {
		*stored = q.LFSUpload(u, body, response)
		if q.Err == nil && !u.Partial && *stored != u.Size {
			q.Err = fault.New(fault.Internal, "the storage node stored %d of the object's %d bytes", *stored, u.Size)
		}
	})
}

// tusHead answers how many bytes of an upload have arrived.
func (q *request) tusHead(o lfs.Object) {
	if !q.isTus() || !q.mayLFS(auth.Write) {
		return
	}
	arrived := int64(0)
	sink := &sink{q: q, header: func(h http.Header) {
		h.Set("Cache-Control", "no-store")
		h.Set(tusOffset, strconv.FormatInt(arrived, 10))
		h.Set("Upload-Length", strconv.FormatInt(o.Size, 10))
	}}
	q.respond("", sink, gateway.EmptyBody(), func(response *gateway.Response) { arrived = q.LFSPart(o, response) })
}

// tusPatch continues an upload.
func (q *request) tusPatch(o lfs.Object) {
	if !q.isTus() || !q.contentType(tusType) || !q.mayLFS(auth.Write) {
		return
	}
	offset, err := parseSize(q.r.Header.Get(tusOffset))
	switch {
	case err != nil || offset > o.Size:
		q.refuse(http.StatusBadRequest, "bad Upload-Offset: the object has "+strconv.FormatInt(o.Size, 10)+" bytes")
		return
	case q.r.ContentLength > o.Size-offset:
		q.refuse(http.StatusBadRequest, "the request has "+strconv.FormatInt(q.r.ContentLength, 10)+
			" bytes: the object ends after "+strconv.FormatInt(o.Size-offset, 10))
		return
	}
	arrived := q.LFSPart(o, nil)
	if q.Err != nil {
		q.fail(q.Err)
		return
	}
	if arrived != offset {
		q.w.Header().Set(tusOffset, strconv.FormatInt(arrived, 10))
		q.refuse(http.StatusConflict, "the upload continues at byte "+strconv.FormatInt(arrived, 10))
		return
	}
	if offset == o.Size && o.Size > 0 { // the repository has the object
		q.w.Header().Set(tusOffset, strconv.FormatInt(arrived, 10))
		q.begin(http.StatusNoContent)
		return
	}
	sink := &sink{q: q, status: http.StatusNoContent}
	sink.header = func(h http.Header) { h.Set(tusOffset, strconv.FormatInt(arrived, 10)) }
	q.lfsUpload(lfs.Upload{Object: o, Offset: offset, Partial: true}, sink, &arrived)
}

// isTus checks the version of the protocol, and refuses the request if it is another one.
func (q *request) isTus() bool {
	q.w.Header().Set(tusHeader, tusVersion)
	if q.r.Header.Get(tusHeader) == tusVersion {
		return true
	}
	q.w.Header().Set("Tus-Version", tusVersion)
	q.refuse(http.StatusPreconditionFailed, "only version "+tusVersion+" of tus is supported")
	return false
}
