tok
