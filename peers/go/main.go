// An MCP server that reads JSON as Go programs do: encoding/json matches member names without
// regard to case, and takes the last of several. It writes each call it carries out as a line into
// a ledger. The broker must have allowed exactly these calls.
//
//	go-server LEDGER
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
)

type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
}

type callParams struct {
	Name      string `json:"name"`
	URI       string `json:"uri"`
	Arguments struct {
		Path string `json:"path"`
	} `json:"arguments"`
}

type object map[string]any

type server struct {
	out      sync.Mutex
	ledger   *os.File
	released chan struct{}
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: go-server LEDGER")
	}
	ledger, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	s := &server{ledger: ledger, released: make(chan struct{})}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			log.Printf("not a message: %v", err)
			continue
		}
		s.take(m)
	}
}

func (s *server) take(m message) {
	var params callParams
	if len(m.Params) > 0 {
		if err := json.Unmarshal(m.Params, &params); err != nil {
			s.fail(m.ID, -32602, err.Error())
			return
		}
	}
	switch m.Method {
	case "initialize":
		s.answer(m.ID, object{
			"protocolVersion": "2025-11-25",
			"capabilities":    object{"tools": object{}, "resources": object{}},
			"serverInfo":      object{"name": "go-server", "version": "1"},
		})
	case "ping":
		s.answer(m.ID, object{})
	case "tools/list":
		path := object{"type": "string", "pattern": "^/srv/"}
		schema := object{"type": "object", "properties": object{"path": path}, "additionalProperties": false}
		s.answer(m.ID, object{"tools": []object{
			{"name": "read_file", "inputSchema": schema},
			{"name": "delete_all", "inputSchema": object{"type": "object"}},
			{"name": "wait", "inputSchema": object{"type": "object"}},
			{"name": "release", "inputSchema": object{"type": "object"}},
		}})
	case "resources/list":
		s.answer(m.ID, object{"resources": []object{{"uri": "file:///srv/files/a", "name": "a"}}})
	case "resources/templates/list":
		s.answer(m.ID, object{"resourceTemplates": []object{}})
	case "resources/read":
		s.carriedOut("resources/read", params.URI)
		s.answer(m.ID, object{"contents": []object{{"uri": params.URI, "text": "read"}}})
	case "tools/call":
		s.carriedOut("tools/call", params.Name, params.Arguments.Path)
		switch params.Name {
		case "wait":
			go func() {
				<-s.released
				s.answer(m.ID, text("waited"))
			}()
		case "release":
			close(s.released)
			s.answer(m.ID, text("released"))
		default:
			s.answer(m.ID, text("done"))
		}
	default:
		if !strings.HasPrefix(m.Method, "notifications/") {
			s.fail(m.ID, -32601, "no such method")
		}
	}
}

func text(text string) object {
	return object{"content": []object{{"type": "text", "text": text}}}
}

func (s *server) carriedOut(what ...string) {
	line, _ := json.Marshal(what)
	if _, err := s.ledger.Write(append(line, '\n')); err != nil {
		log.Fatal(err)
	}
}

func (s *server) answer(id json.RawMessage, result object) {
	s.write(object{"jsonrpc": "2.0", "id": id, "result": result})
}

func (s *server) fail(id json.RawMessage, code int, text string) {
	s.write(object{"jsonrpc": "2.0", "id": id, "error": object{"code": code, "message": text}})
}

func (s *server) write(m object) {
	line, err := json.Marshal(m)
	if err != nil {
		log.Fatal(err)
	}
	s.out.Lock()
	defer s.out.Unlock()
	fmt.Println(string(line))
}
