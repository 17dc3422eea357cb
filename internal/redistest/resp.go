package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// encode returns args as a request: an array of bulk strings.
func encode(args ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// ask sends one request on conn and returns the reply's raw bytes.
func ask(conn net.Conn, request []byte) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := conn.Write(request); err != nil {
		return "", err
	}
	reply, err := readReply(bufio.NewReader(conn))
	return string(reply), err
}

// readRequest returns the raw bytes of the next request.
func readRequest(r *bufio.Reader) ([]byte, error) {
	first, err := r.Peek(1)
	if err != nil {
		return nil, err
	}
	if first[0] != '*' {
		return r.ReadBytes('\n') // an inline command, as typed into a telnet
	}
	return appendFrame(nil, r)
}

// readReply returns the raw bytes of the next reply, RESP2 or RESP3.
func readReply(r *bufio.Reader) ([]byte, error) {
	return appendFrame(nil, r)
}

// isPush tells a RESP3 push message, which answers no request, from a reply.
func isPush(reply []byte) bool { return reply[0] == '>' }

// appendFrame reads one RESP value with all it contains and appends its bytes.
func appendFrame(dst []byte, r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	dst = append(dst, line...)
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return dst, nil
	case '$', '=', '!':
		n, err := count(line)
		if err != nil || n < 0 {
			return dst, err
		}
		at := len(dst)
		dst = append(dst, make([]byte, n+len("\r\n"))...)
		_, err = io.ReadFull(r, dst[at:])
		return dst, err
	case '*', '~', '>':
		return appendFrames(dst, r, line, 1, 0)
	case '%':
		return appendFrames(dst, r, line, 2, 0)
	case '|': // attributes, and then the value they describe
		return appendFrames(dst, r, line, 2, 1)
	}
	return nil, fmt.Errorf("redistest: not RESP: %q", line)
}

// appendFrames reads the perItem values of each item that line announces, and
// extra ones.
func appendFrames(dst []byte, r *bufio.Reader, line []byte, perItem, extra int) ([]byte, error) {
	n, err := count(line)
	for range n*perItem + extra {
		if err != nil {
			break
		}
		dst, err = appendFrame(dst, r)
	}
	return dst, err
}

func count(line []byte) (int, error) {
	return strconv.Atoi(string(bytes.TrimSpace(line[1:])))
}

// verb returns a request's command, in capitals and with its subcommand if it
// is CLIENT.
func verb(request []byte) string {
	r := bufio.NewReader(bytes.NewReader(request))
	words := make([]string, 0, 2)
	for len(words) < cap(words) {
		line, err := r.ReadString('\n')
		if err != nil {
			break
		}
		if line = strings.TrimSpace(line); line != "" && line[0] != '*' && line[0] != '$' {
			words = append(words, strings.ToUpper(line))
		}
	}
	switch {
	case len(words) == 0:
		return ""
	case words[0] == "CLIENT":
		return strings.Join(words, " ")
	}
	return words[0]
}

// isHandshake tells what a client library sends on its own when it opens a
// connection from what its user asked for.
func isHandshake(request []byte) bool {
	switch verb(request) {
	case "HELLO", "AUTH", "SELECT", "READONLY",
		"CLIENT SETINFO", "CLIENT SETNAME", "CLIENT MAINT_NOTIFICATIONS":
		return true
	}
	return false
}

// turnsToPushing says that after this request the server speaks without being
// asked, so that replies can no longer be matched with requests.
func turnsToPushing(request []byte) bool {
	switch verb(request) {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR":
		return true
	}
	return false
}
