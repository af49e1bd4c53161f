-- The bytes of an open input count as bytes of its task: the request of the backend and the answer of the client. An input
-- gives them back when it is closed, because a closed one has neither. Kept by triggers, as the counts of tasks are. The
-- inputs of a deleted task need none: the bytes of its row contain theirs.
CREATE TRIGGER task_inputs_added AFTER INSERT ON task_inputs BEGIN
    UPDATE tasks SET bytes = bytes + length(NEW.request) + ifnull(length(NEW.answer), 0) WHERE number = NEW.task;
END;

CREATE TRIGGER task_inputs_changed AFTER UPDATE OF request, answer ON task_inputs BEGIN
    UPDATE tasks SET bytes = bytes + length(NEW.request) + ifnull(length(NEW.answer), 0)
                                   - length(OLD.request) - ifnull(length(OLD.answer), 0)
    WHERE number = NEW.task;
END;

-- Inputs that are open already.
UPDATE tasks SET bytes = bytes + (SELECT sum(length(request) + ifnull(length(answer), 0)) FROM task_inputs AS i WHERE i.task = tasks.number)
WHERE number IN (SELECT task FROM task_inputs WHERE closed = 0);
