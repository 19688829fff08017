package compare

import "bytes"

// noRequest is the route of connections that ended before a request.
const noRequest = "(no request)"

// appendName appends the route of the last line's request.
func (p *parser) appendName(to []byte) ([]byte, error) {
	if p.format == Packhorse && len(p.got[fieldOperation]) == 0 {
		p.got[fieldOperation] = []byte("other")
	}
	if p.format == Packhorse && (p.got[fieldTarget] == nil || p.operations) {
		return p.appendOurs(to), nil
	}
	if len(p.got[fieldTarget]) == 0 {
		if p.class == answered {
			return to, errTarget
		}
		return append(to, noRequest...), nil
	}
	if p.operations {
		return append(to, operationOf(p.got[fieldMethod], p.got[fieldTarget])...), nil
	}
	switch string(p.got[fieldMethod]) {
	case "GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "CONNECT", "TRACE":
		to = append(to, p.got[fieldMethod]...)
	default:
		to = append(to, "{method}"...)
	}
	return appendRoute(append(to, ' '), p.got[fieldTarget], p.patterns), nil
}

// appendOurs appends the operation of a git client, for which Packhorse's log has no path.
func (p *parser) appendOurs(to []byte) []byte {
	if p.operations {
		switch string(p.got[fieldOperation]) {
		case "fetch":
			switch {
			case !p.exact:
				return append(to, "upload-pack"...)
			case p.got[fieldPack] == nil:
				return append(to, "negotiate"...)
			case p.got[fieldHaves] == nil || string(p.got[fieldHaves]) == "0":
				return append(to, "clone"...)
			}
		case "ls_refs", "object_info", "bundle_uri":
			if !p.exact {
				return append(to, "upload-pack"...)
			}
		}
		return append(to, p.got[fieldOperation][:min(len(p.got[fieldOperation]), maxSegment)]...)
	}
	if string(p.got[fieldTransport]) == "ssh" {
		to = append(to, "SSH /{repo}"...)
	} else if string(p.got[fieldOperation]) == "info_refs" {
		return append(to, "GET /{repo}/info/refs"...)
	} else {
		to = append(to, "POST /{repo}"...)
	}
	switch string(p.got[fieldOperation]) {
	case "push":
		return append(to, "/git-receive-pack"...)
	case "ls_refs", "fetch", "object_info", "bundle_uri", "info_refs":
		return append(to, "/git-upload-pack"...)
	}
	return append(append(to, '/'), p.got[fieldOperation][:min(len(p.got[fieldOperation]), maxSegment)]...)
}

// operationOf returns the operation of a path, with the name of Packhorse's log.
func operationOf(method, target []byte) string {
	path := pathOf(target)
	switch {
	case bytes.HasSuffix(path, []byte("/info/refs")):
		return "info_refs"
	case string(method) == "POST" && bytes.HasSuffix(path, []byte("/git-upload-pack")):
		return "upload-pack"
	case string(method) == "POST" && bytes.HasSuffix(path, []byte("/git-receive-pack")):
		return "push"
	case bytes.HasPrefix(path, []byte("/-/api/v1/search")), bytes.HasPrefix(path, []byte("/.api/")):
		return "search"
	case bytes.HasPrefix(path, []byte("/-/api/v1/resolve")):
		return "resolve"
	case bytes.HasPrefix(path, []byte("/-/")):
		return "page"
	}
	return "other"
}
